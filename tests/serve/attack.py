"""The attack on the server: hundreds of hostile clients, for minutes, and a few honest ones among them.

Each class of attacks.py has a phase of its own, then all of them come at once, with SIGTERM and a new start in between. It fails if an honest answer
differs by a bit from the one before the attack, if the server dies, answers what it should refuse, forgets what it holds, takes more
memory than it was given, or if /ready is slow. At the end it prints what happened, with numbers. Before it, every attack is tried
alone, and its time and what it does to a second connection are written down.

MILLRACE is the program's path. Attackers run at a low priority: they stand for other machines. A process beside them does a fixed work now and then: by how
much it is late, and its processor time grows, the machine is busy, and so much longer the server may take; with --strict it may not.
"""

import argparse
import collections
import concurrent.futures
import json
import multiprocessing
import os
import queue
import random
import resource
import signal
import socket
import sys
import threading
import time
import traceback
import zlib

import attacks
from absurd_files import try_files
from attack_templates import HOSTILE, hostile_template
from attacks import ATTACKS
from millrace_server import Server
from tiny_model import tiny_model
from wire import Wire

SLOW = float(os.environ.get("MILLRACE_SLOWDOWN", 1))  # of a build with sanitizers, whose memory says nothing
HONEST = [
    ("/v1/completions", {"prompt": [5, 17, 300], "max_tokens": 24, "temperature": 0, "ignore_eos": True, "logprobs": 3}),
    ("/v1/completions", {"prompt": "Once upon a time", "max_tokens": 24, "temperature": 1, "seed": 7, "ignore_eos": True, "n": 2}),
    ("/v1/completions", {"prompt": list(range(200)), "max_tokens": 8, "temperature": 0.7, "top_p": 0.9, "seed": 3, "logprobs": 1, "ignore_eos": True}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "What is the capital of France?"}], "max_tokens": 16, "temperature": 0}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Sing."}], "max_tokens": 16, "seed": 11, "logprobs": True, "top_logprobs": 2}),
]
CLASSES = {1: "framing", 2: "work", 3: "memory", 4: "templates", 5: "files", 6: "leaving", 7: "strangers", 8: "storm"}
MB = 1 << 20
ENOUGH = 10  # honest answers under attack


class Shared:
    """State shared by the processes of an attack."""

    def __init__(self, port):
        self.port = port
        self.phase = multiprocessing.Value("i", 0)
        self.lives = multiprocessing.Value("i", 0)  # odd: the server is up; it grows with every start and every signal
        self.over = multiprocessing.Value("b", 0)
        self.pause = multiprocessing.Value("b", 0)  # all requests but /ready stop, so that leaks show
        self.n_equal = multiprocessing.Value("i", 0)  # honest answers
        self.results = multiprocessing.Queue()


def resident(pid, field="VmRSS"):
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(field + ":"))


def peak(pid):
    """Peak resident memory since forget_peak()."""
    return resident(pid, "VmHWM")


def forget_peak(pid):
    with open(f"/proc/{pid}/clear_refs", "w") as file:
        file.write("5")


def told(shared, target, arguments):
    """One process of the attack; reports the exception that ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        shared.results.put(target(shared, *arguments))
    except BaseException:
        shared.results.put(("failed", [f"{target.__name__} ended with\n" + traceback.format_exc()]))


def choices_of(server_port, path, body):
    """The status, and the answer without its id and times."""
    import http.client
    connection = http.client.HTTPConnection("127.0.0.1", server_port, timeout=60 * SLOW)
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        data = response.read()
    finally:
        connection.close()
    return response.status, json.loads(data).get("choices")


# ---- the processes

def attackers(shared, phases, seed, n_threads):
    os.nice(10)
    lock = threading.Lock()
    counts, slowest, wrong = collections.defaultdict(collections.Counter), collections.Counter(), []

    def client(number):
        try:
            visit_on(random.Random(seed * 1000 + number), Wire(shared.port, 60 * SLOW))
        except BaseException:
            with lock:
                wrong.append("an attacker ended with\n" + traceback.format_exc())

    def visit_on(rng, wire):
        while not shared.over.value:
            if shared.pause.value:
                time.sleep(0.05)
                continue
            visit = ATTACKS[rng.choice(phases[shared.phase.value][1])]
            lives, begin, outcome = shared.lives.value, time.monotonic(), None
            try:
                status = visit.visit(wire, rng)
            except ConnectionRefusedError:
                time.sleep(0.05)
                continue
            except OSError as error:
                status, outcome = 0, error
            seconds = time.monotonic() - begin
            restarted = shared.lives.value != lives or lives % 2 == 0
            with lock:
                counts[visit.name][status] += 1
                if not visit.waits and not restarted:
                    slowest[visit.name] = max(slowest[visit.name], seconds)
                # A client that connects when memory or connections are exhausted may be disconnected without a response. A time-out is a failure.
                cut = status == 0 and not isinstance(outcome, TimeoutError)
                if status not in visit.allowed and not cut and not restarted and len(wrong) < 20:
                    wrong.append(f"{visit.name}: {status} {outcome or ''}")

    threads = [threading.Thread(target=client, args=(number,)) for number in range(n_threads)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return "attackers", dict(counts), dict(slowest), wrong


def honest_client(shared, expected):
    counts, wrong = collections.Counter(), []
    while not shared.over.value:
        for i, (path, body) in enumerate(HONEST):
            while shared.pause.value and not shared.over.value:
                time.sleep(0.05)
            lives = shared.lives.value
            try:
                status, choices = choices_of(shared.port, path, body)
                why = f"{status} instead of an answer" if status not in (200, *attacks.BUSY) else \
                    f"{choices} instead of {expected[i]}" if status == 200 and choices != expected[i] else ""
                counts["refused" if status in attacks.BUSY else "other" if why else "equal"] += 1
                shared.n_equal.value += status == 200 and not why
            except (OSError, ValueError, __import__("http").client.HTTPException) as error:
                why = repr(error)
                counts["lost"] += 1
            if why and shared.lives.value == lives and lives % 2 == 1:
                wrong.append(f"honest request {i}: {why}")
            time.sleep(0.02)
    return "honest", dict(counts), wrong


def onlooker(shared):
    """How late a thread that slept is woken, and by how much more processor time a fixed work takes than at best."""
    late, work, page = [], [], bytes(1 << 20)
    while not shared.over.value:
        begin = time.monotonic()
        time.sleep(0.01)
        late.append(time.monotonic() - begin - 0.01)
        begin = time.thread_time()
        for _ in range(8):
            zlib.crc32(bytearray(page))
        work.append(time.thread_time() - begin)
    return "onlooker", late, [w / min(work) for w in work], []


def ready_client(shared):
    latencies, wrong = collections.defaultdict(list), []
    wire = Wire(shared.port, 30 * SLOW)
    while not shared.over.value:
        lives, phase, begin = shared.lives.value, shared.phase.value, time.monotonic()
        status, why = 0, ""
        try:
            status = wire.status(b"GET /ready HTTP/1.1\r\nHost: localhost\r\n\r\n")
        except OSError as error:
            why = repr(error)
        if shared.lives.value == lives and lives % 2 == 1:
            latencies[phase].append(time.monotonic() - begin)
            if status != 200:
                wrong.append(f"/ready: {status} {why}")
        time.sleep(0.01)
    return "ready", dict(latencies), wrong


# ---- the server

class Service:
    def __init__(self, memory):
        self.model = tiny_model(hostile_template())
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.memory, self.server, self.wrong, self.held = memory, None, [], 0
        self.turn = 0.0  # seconds of processor time for which a thread that moves bytes was held
        self.rests, self.most_at_rest = [], 0  # bytes that were resident when nobody was served, and may be

    def start(self):
        self.server = Server(*self.model, "--http-memory", self.memory, "--threads", 1, "--memory", "64M", "--max-queue", 512, "--log-level", "error",
                             "--drain-seconds", 10, port=self.port)

    def stop(self, why):
        begin = time.monotonic()
        status = self.server.stop()
        seconds = time.monotonic() - begin
        if status != 0:
            self.wrong.append(f"{why}: the server ended with {status}\n" + "".join(self.server.log[-200:]))
        if seconds > 20 * SLOW:
            self.wrong.append(f"{why}: {seconds:.1f} s from SIGTERM to the end")
        return seconds

    def look(self, when):
        """What one life of the server has come to: each is looked at before it ends."""
        self.held = max(self.held, self.server.metric("http_memory_peak_bytes"))
        if self.held > self.server.metric("http_memory_limit_bytes"):
            self.wrong.append(f"{when}: {self.held / MB:.0f} MB are held for clients")
        self.turn = max(self.turn, self.server.metric("http_longest_turn_seconds"))
        if n := self.server.metric("http_connections_failed_total"):
            self.wrong.append(f"{when}: {n:.0f} connections ended with an exception:\n" + "".join(self.server.log[-20:]))

    def settle(self, when):
        """Nothing leaks."""
        def is_quiet():
            return self.server.metric("num_requests_queued") == 0 and self.server.metric("num_requests_running") == 0 and \
                self.server.metric("http_memory_bytes") <= MB and self.server.metric("http_connections") < 10
        try:
            self.server.wait_for(is_quiet, 90 * SLOW)
        except AssertionError:
            names = ["num_requests_queued", "num_requests_running", "http_memory_bytes", "http_connections"]
            self.wrong.append(f"left behind {when}: " + ", ".join(f"{name} {self.server.metric(name):.0f}" for name in names))
        rest = lambda: resident(self.server.process.pid)
        end = time.monotonic() + 20  # what is freed goes back to the system within seconds
        while SLOW == 1 and rest() > self.most_at_rest and time.monotonic() < end:
            time.sleep(0.1)
        self.rests.append(rest())
        self.look(when)


def try_alone(service, n, seed):
    """By attack: the slowest of n visits, the slowest /health beside them, the growth of memory."""
    table, rng, wire = {}, random.Random(seed), Wire(service.port, 60 * SLOW)
    pid = service.server.process.pid
    for visit in ATTACKS.values():
        over = threading.Event()
        before = resident(pid)
        forget_peak(pid)

        def beside():
            slowest = 0.0
            while not over.is_set():
                begin = time.monotonic()
                status = wire.status(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                slowest = max(slowest, time.monotonic() - begin)
                if status != 200:
                    service.wrong.append(f"/health beside {visit.name}: {status}")
                time.sleep(0.002)
            return slowest

        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            watcher = pool.submit(beside)
            slowest = 0.0
            try:
                for _ in range(n):
                    begin = time.monotonic()
                    status = visit.visit(wire, rng)
                    slowest = max(slowest, time.monotonic() - begin)
                    if status not in visit.allowed:
                        service.wrong.append(f"{visit.name} alone: {status}")
            finally:
                over.set()
            health = watcher.result()  # and what it threw
        table[visit.name] = (visit.kind, None if visit.waits else slowest, health, max(0, peak(pid) - before))
    return table


def slowest_template(service):
    """Every hostile template once, alone: seconds, and which."""
    slowest, wire = (0.0, 0), Wire(service.port, 60 * SLOW)
    for i in range(len(HOSTILE)):
        body = {"messages": [{"role": "user", "content": "hi"}], "chat_template_kwargs": {"attack": i}}
        begin = time.monotonic()
        if (status := wire.post("/tokenize", body)) != 400:
            service.wrong.append(f"the hostile template {i} alone: {status}")
        slowest = max(slowest, (time.monotonic() - begin, i))
    return slowest


# ---- the whole

def phases_of():
    by_kind = collections.defaultdict(list)
    for visit in ATTACKS.values():
        by_kind[visit.kind].append(visit.name)
    return [(CLASSES[kind], by_kind[kind]) for kind in sorted(by_kind)] + [("all of them", list(ATTACKS))]


def run_phases(service, shared, phases, seconds):
    """Peaks of memory and what is left by phase, and the seconds that the drains took."""
    peaks, after, drains = [0] * len(phases), [0] * len(phases), []
    share = seconds / (len(phases) + 1)  # the last phase takes two of them

    def attack_on(i, seconds):
        """False: the server is dead."""
        forget_peak(service.server.process.pid)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if service.server.process.poll() is not None:
                service.wrong.append(f"the server died in the phase '{phases[i][0]}': {service.server.process.returncode}\n" + "".join(service.server.log[-200:]))
                return False
            time.sleep(0.02)
        peaks[i] = max(peaks[i], peak(service.server.process.pid))
        after[i] = resident(service.server.process.pid)
        return True

    last = len(phases) - 1
    for i in range(last):
        shared.phase.value = i
        if not attack_on(i, share):
            return peaks, after, drains
    shared.pause.value = 1
    service.settle("before the restart")
    shared.phase.value = last
    shared.pause.value = 0
    if attack_on(last, share):
        service.look("at the restart")
        shared.lives.value += 1
        drains.append(service.stop("SIGTERM under attack"))
        service.start()
        shared.lives.value += 1
        alive, end = attack_on(last, share), time.monotonic() + 180 * SLOW
        while alive and shared.n_equal.value < ENOUGH and time.monotonic() < end:  # a busy machine takes longer
            alive = attack_on(last, 1)
    return peaks, after, drains


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * share))] if values else 0.0


def gather(shared, processes):
    """Reports of the processes, which can exit only when these are read."""
    out, deadline = [], time.monotonic() + 150 * SLOW
    while len(out) < len(processes) and time.monotonic() < deadline:
        try:
            out.append(shared.results.get(timeout=1))
        except queue.Empty:
            pass
    for p in processes:
        p.join(5)
        if p.is_alive():
            p.kill()
    return out


def report(args, phases, alone, files, peaks, after, drains, rss, said):
    counts, slowest = collections.defaultdict(collections.Counter), collections.Counter()
    latencies, honest, late, slow = collections.defaultdict(list), collections.Counter(), [0.0], [1.0]
    for kind, *rest in said:
        if kind == "attackers":
            for name, statuses in rest[0].items():
                counts[name].update(statuses)
            for name, seconds in rest[1].items():
                slowest[name] = max(slowest[name], seconds)
        elif kind == "honest":
            honest.update(rest[0])
        elif kind == "ready":
            latencies.update(rest[0])
        elif kind == "onlooker":
            late, slow = rest[0], rest[1]
    total = sum(sum(c.values()) for c in counts.values())
    print(f"attack: {total} visits of {args.clients} clients in {args.seconds:.0f} s; seed {args.seed}, --http-memory {args.http_memory}\n")
    print("| class | attack | visits | answers (0: none) | slowest, s | alone, s | /health beside it, ms | memory, MB |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for name, (kind, seconds, health, growth) in alone.items():
        statuses = ", ".join(f"{status}: {n}" for status, n in sorted(counts[name].items()))
        times = f"{slowest[name]:.2f} | {seconds:.3f}" if seconds is not None else "waits | waits"
        print(f"| {kind} {CLASSES[kind]} | {name} | {sum(counts[name].values())} | {statuses} | {times} | {health * 1e3:.0f} | +{growth / MB:.0f} |")
    print(f"| 5 files | {files[0]} absurd models | {files[0]} | | | {files[1][1]:.3f} ({files[1][0]}) | | |\n")
    print("| phase | /ready, ms: median | p99 | slowest | peak memory, MB | after it |")
    print("| --- | --- | --- | --- | --- | --- |")
    for i, (name, _) in enumerate(phases):
        l = latencies[i]
        print(f"| {name} | {percentile(l, 0.5) * 1e3:.1f} | {percentile(l, 0.99) * 1e3:.1f} | {max(l, default=0) * 1e3:.0f} | {peaks[i] / MB:.0f} | {after[i] / MB:.0f} |")
    print(f"\nmemory: {rss['start'] / MB:.0f} MB before, {max(peaks) / MB:.0f} MB at most (allowed: {rss['allowed'] / MB:.0f}), {rss['end'] / MB:.0f} MB after the end, at rest {', '.join(f'{n / MB:.0f}' for n in rss['rests'])};"
          f" held for clients at most: {rss['held'] / MB:.0f} MB of {rss['limit'] / MB:.0f}")
    print(f"a thread that moves bytes was held for {rss['turn'] * 1e3:.1f} ms of processor time at most")
    print(f"honest requests: {dict(honest)}; SIGTERM to the end of the process: {', '.join(f'{s:.1f} s' for s in drains)}")
    every = [x for l in latencies.values() for x in l]
    print(f"/ready: {len(every)} probes, median {percentile(every, 0.5) * 1e3:.1f} ms, p99 {percentile(every, 0.99) * 1e3:.1f} ms, slowest {max(every, default=0) * 1e3:.0f} ms")
    print(f"the machine: a thread that slept was late by {percentile(late, 0.99) * 1e3:.1f} ms (p99), {max(late) * 1e3:.0f} ms at most; a fixed work took"
          f" {percentile(slow, 0.99):.1f} times its least processor time (p99), {max(slow):.1f} times at most")
    return every, honest, total, late, slow


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--http-memory", default="128M")
    parser.add_argument("--strict", action="store_true", help="hold /ready and /health to 100 ms and a thread's turn to 50 ms, for a quiet machine")
    args = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)

    service, phases = Service(args.http_memory), phases_of()
    service.start()
    shared = Shared(service.port)
    watching = multiprocessing.Process(target=told, args=(shared, onlooker, ()), daemon=True)
    watching.start()
    expected = []
    for path, body in HONEST:
        answers = [choices_of(service.port, path, body) for _ in range(2)]
        assert answers[0] == answers[1] and answers[0][0] == 200, answers
        expected.append(answers[0][1])
    rss = {"start": resident(service.server.process.pid)}
    service.most_at_rest = rss["start"] + 96 * MB
    alone = try_alone(service, 2 if args.seconds < 60 else 10, args.seed)
    service.settle("by attacks that came alone")  # memory that they still hold would be refused to templates
    templates = slowest_template(service)
    service.settle("by templates that came alone")
    files = try_files(service.wrong, SLOW)

    n_processes = 4
    shared.lives.value = 1
    jobs = [(attackers, (phases, args.seed + i, args.clients // n_processes)) for i in range(n_processes)]
    jobs += [(honest_client, (expected,)), (ready_client, ())]
    processes = [multiprocessing.Process(target=told, args=(shared, *job), daemon=True) for job in jobs]
    for p in processes:
        p.start()
    processes.append(watching)
    peaks, after, drains = run_phases(service, shared, phases, args.seconds)
    shared.over.value = 1
    said = gather(shared, processes)
    wrong = service.wrong + [w for _, *rest in said for w in rest[-1]]
    if len(said) < len(processes):
        wrong.append(f"{len(processes) - len(said)} processes of the attack did not end in time")
    if service.server.process.poll() is None:
        service.wrong = []
        service.settle("at the end")
        for i, (path, body) in enumerate(HONEST):
            if choices_of(service.port, path, body) != (200, expected[i]):
                wrong.append(f"honest request {i} is answered otherwise after the attack")
        rss["end"] = resident(service.server.process.pid)
        rss["turn"], rss["rests"] = service.turn, service.rests
        rss["held"], rss["limit"] = service.held, service.server.metric("http_memory_limit_bytes")
        rss["allowed"] = rss["start"] + int(args.http_memory[:-1]) * MB + 64 * MB
        service.stop("the end")
        wrong += service.wrong
        every, honest, total, late, slow = report(args, phases, alone, files, peaks, after, drains, rss, said)
        if SLOW == 1:
            if max(peaks) > rss["allowed"]:
                wrong.append(f"memory: {max(peaks) / MB:.0f} MB at most, but {rss['allowed'] / MB:.0f} are allowed")
            if max(service.rests) > service.most_at_rest:
                wrong.append(f"memory: {rss['start'] / MB:.0f} MB before, {max(service.rests) / MB:.0f} MB after")
        # What the machine adds for anybody is the server's to add, unless it is quiet.
        longest_turn = 0.05 if args.strict else 0.05 * SLOW * max(slow)
        longest = 0.1 if args.strict else (2 + 10 * max(late)) * SLOW
        usual = 0.1 if args.strict else (0.25 + 10 * percentile(late, 0.99)) * SLOW
        if service.turn > longest_turn:
            wrong.append(f"a connection held a thread that moves bytes for {service.turn * 1e3:.0f} ms of its processor time, allowed are {longest_turn * 1e3:.0f}")
        for name, (_, _, health, _) in alone.items():
            if health > longest:
                wrong.append(f"/health beside {name} took {health:.2f} s, allowed are {longest:.2f}")
        if max(every, default=60) > longest:
            wrong.append(f"/ready took {max(every, default=60):.2f} s, allowed are {longest:.2f}")
        if percentile(every, 0.99) > usual:
            wrong.append(f"/ready: p99 is {percentile(every, 0.99) * 1e3:.0f} ms, allowed are {usual * 1e3:.0f}")
        print(f"{len(HOSTILE)} hostile templates, each alone: stopped after {templates[0] * 1e3:.0f} ms at most (the {templates[1]}th)")
        if templates[0] > (0.2 if args.strict else longest):
            wrong.append(f"the hostile template {templates[1]} took {templates[0] * 1e3:.0f} ms")
        if honest["equal"] < ENOUGH or total < args.clients:
            wrong.append(f"too little happened: {total} visits, {dict(honest)}")
    for line, n in collections.Counter(wrong).items():
        print(f"wrong ({n} times):", line[:6000])
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
