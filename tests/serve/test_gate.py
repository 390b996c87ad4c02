"""Nothing that comes in brings the server down: what a client may send, hold and leave unread, against the whole program.

MILLRACE is the program's path. Only the loopback is used; bounds on time are generous, for busy machines.
"""

import concurrent.futures
import json
import os
import random
import resource
import socket
import struct
import subprocess
import threading
import time
import unittest

from attack_templates import HOSTILE, hostile_template
from attacks import conversation
from millrace_server import FIXTURES, PROGRAM, Server
from tiny_model import tiny_model

TINY = FIXTURES / "llama_gqa"
SLOW = float(os.environ.get("MILLRACE_SLOWDOWN", 1))  # of a build with sanitizers
SOON = 6 * SLOW  # seconds: a tenth of one on a quiet machine, as attack.py measures it; more only where a thread is held


def connect(server):
    return socket.create_connection(("127.0.0.1", server.port), timeout=30)


def post(path, body, *headers):
    head = [b"POST %s HTTP/1.1" % path.encode(), b"Host: localhost", b"Content-Length: %d" % len(body), *headers]
    return b"\r\n".join(head) + b"\r\n\r\n" + body


def status_of(server, words, body_follows=b""):
    """The status of the first response to raw bytes; 0: the server closed without one."""
    with connect(server) as s:
        try:
            s.sendall(words)
            s.sendall(body_follows)
        except OSError:
            pass  # it may have closed already; its response can still be read
        data = b""
        try:
            while b"\r\n" not in data and (part := s.recv(65536)):
                data += part
        except OSError:
            pass
        return int(data.split()[1]) if data else 0


def reset_at_close(s):
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def resident(server):
    with open(f"/proc/{server.process.pid}/status") as status:
        fields = dict(line.split(":", 1) for line in status)
    return int(fields["VmRSS"].split()[0]) * 1024


def processor_seconds(server):
    """CPU time of the server, which a busy machine does not change, unlike wall time."""
    with open(f"/proc/{server.process.pid}/stat") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Watch:
    """The slowest answer of /health and the largest resident memory while something happens."""

    def __init__(self, server):
        self.server, self.slowest, self.peak, self.over, self.failure = server, 0, 0, False, None
        self.thread = threading.Thread(target=self.run)

    def run(self):
        try:
            while not self.over:
                begin = time.time()
                assert self.server.raw("GET", "/health")[0].status == 200
                self.slowest = max(self.slowest, time.time() - begin)
                self.peak = max(self.peak, resident(self.server))
                time.sleep(0.005)
        except Exception as failure:  # would be lost in this thread
            self.failure = failure

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over = True
        self.thread.join()
        if self.failure:
            raise self.failure


class Gate(unittest.TestCase):
    ARGS = [TINY]

    @classmethod
    def setUpClass(cls):
        cls.server = Server(*cls.ARGS)

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0

    def tearDown(self):
        self.assertIsNone(self.server.process.poll(), "the server has died")
        self.assertEqual(self.server.raw("GET", "/health")[0].status, 200)

    def assertHolds(self, growth, megabytes):
        """Memory is not checked under a sanitizer."""
        if SLOW == 1:
            self.assertLess(growth, megabytes << 20)

    def quiet(self):
        """Nothing leaks: no memory, no entry in the queue."""
        self.server.wait_for(lambda: self.server.metric("num_requests_queued") == 0 and self.server.metric("num_requests_running") == 0)
        self.server.wait_for(lambda: self.server.metric("http_memory_bytes") <= 1 << 20)


class Framing(Gate):
    def test_chunks_extensions_and_trailers(self):
        chunked = b"%s HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        get, ask = chunked % b"GET /health", chunked % b"POST /v1/completions"
        for head in [get, ask]:
            self.assertEqual(status_of(self.server, head + b"0\r\nX: " + b"x" * 65535), 431)
            self.assertEqual(status_of(self.server, head + b"0\r\n" + b"x" * 65536 + b": y\r\n\r\n"), 431)
            self.assertEqual(status_of(self.server, head + b"0\r\n" + b"A: b\r\n" * 20000), 431)
            self.assertEqual(status_of(self.server, head + b"5;" + b"x" * 70000), 431)
            self.assertEqual(status_of(self.server, head + b"1;abcdefgh\r\nx\r\n" * 20000), 431)
            self.assertEqual(status_of(self.server, head + b"f" * 17 + b"\r\n"), 400)
            self.assertEqual(status_of(self.server, head + b"ffffffffffffffff\r\n"), 413)
            self.assertEqual(status_of(self.server, head + b"900000\r\n"), 413)
        self.assertEqual(status_of(self.server, get + b"0\r\nX: y\r\n\r\n"), 200)
        self.assertEqual(self.server.metric("http_connections_failed_total"), 0)

    def test_floods_of_framing_take_no_memory(self):
        before = resident(self.server)
        flood = b"x" * (1 << 20)
        for head in [b"1;", b"0\r\nX: "]:
            status_of(self.server, b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + head, flood * 40)
        self.assertHolds(resident(self.server) - before, 16)

    def test_heads(self):
        for head, status in [
            (b"GET /health HTTP/1.1\r\n" + b"A: b\r\n" * 200 + b"\r\n", 431),
            (b"GET /health HTTP/1.1\r\nX: " + b"y" * 20000, 431),
            (b"GET /" + b"x" * 20000, 431),
            (b"POST /tokenize HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n", 400),
            (b"POST /tokenize HTTP/1.1\r\nContent-Length: 9999999999\r\n\r\n", 413),
            (b"POST /tokenize HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
            (b"POST /tokenize HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n", 400),
            (b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n", 400),
            (b"GET /health HTTP/1.1\r\nX: a\r\n b\r\n\r\n", 400),  # an obsolete fold
            (b"HEAD /health HTTP/1.1\r\n\r\n", 200),
            (b"HEAD /v1/models HTTP/1.1\r\n\r\n", 200),
        ]:
            self.assertEqual(status_of(self.server, head), status, head[:80])

    def test_resets_at_every_byte_of_a_request(self):
        words = post("/v1/completions", b'{"prompt":[1,2,3],"max_tokens":3,"stream":true}')
        for n in range(len(words) + 1):
            with connect(self.server) as s:
                s.sendall(words[:n])
                reset_at_close(s)
        self.quiet()

    def test_resets_at_every_byte_of_an_answer(self):
        ask = lambda: self.server.json("POST", "/v1/completions", {"prompt": [1, 2, 3], "max_tokens": 3, "temperature": 0})[1]["choices"]
        expected = ask()
        for stream in [b"false", b"true"]:
            words = post("/v1/completions", b'{"prompt":[1,2,3],"max_tokens":3,"stream":%s}' % stream, b"Connection: close")
            with connect(self.server) as s:
                s.sendall(words)
                length = sum(iter(lambda: len(s.recv(65536)), 0))
            self.assertGreater(length, 200)
            for n in range(length + 1):
                with connect(self.server) as s:
                    s.sendall(words)
                    while n > 0 and (part := s.recv(n)):
                        n -= len(part)
                    reset_at_close(s)
        self.quiet()
        self.assertEqual(ask(), expected)
        self.assertEqual(self.server.metric("http_connections_failed_total"), 0)


class Bodies(Gate):
    def test_costly_json_holds_nobody_up(self):
        keys = json.dumps({f"key{i}": 0 for i in range(80000)}).encode()
        nested = b'{"prompt":' + b"[" * 200000 + b"]" * 200000 + b"}"
        many = b'{"prompt":[' + b"{}," * 2000000 + b"1]}"
        strings = b'{"prompt":[' + b'"",' * 2000000 + b'"x"]}'
        twice = b'{"prompt":[1],"prompt":[2]}'
        objects = b'{"messages":[' + b",".join([json.dumps({f"k{i}": 0 for i in range(3000)}).encode()] * 200) + b"]}"
        ask = lambda path, body: status_of(self.server, post(path, body))
        cases = [(path, body) for path in ["/v1/completions", "/v1/chat/completions"] for body in [keys, keys, nested, many, strings, twice, objects]]
        before = resident(self.server)
        with Watch(self.server) as watch, concurrent.futures.ThreadPoolExecutor(8) as pool:
            for (_, body), status in zip(cases, pool.map(ask, *zip(*cases))):
                self.assertIn(status, [400, 503], body[:50])  # 503: the others held all memory or time
        self.assertLess(watch.slowest, SOON)
        self.assertHolds(watch.peak - before, 600)
        for path, body in cases:
            self.quiet()
            self.assertEqual(ask(path, body), 400, body[:50])
        self.quiet()

    def test_too_many_answers(self):
        for n, prompts, status in [(8, 129, 400), (64, 256, 400), (1, 257, 400), (64, 16, 200)]:
            body = {"prompt": [[1]] * prompts, "n": n, "max_tokens": 1, "logit_bias": {str(i): 1 for i in range(100)}}
            self.assertEqual(self.server.json("POST", "/v1/completions", body)[0], status, (n, prompts))
        body = {"prompt": [1], "logit_bias": {str(i): 1 for i in range(1025)}}
        self.assertEqual(self.server.json("POST", "/v1/completions", body)[0], 400)

    def test_health_has_a_body_too(self):
        self.assertEqual(status_of(self.server, b"GET /health HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 1000000), 200)


class Memory(Gate):
    ARGS = [TINY, "--http-memory", "64M", "--max-queue", 2]

    def test_unfinished_bodies(self):
        before, crowd = resident(self.server), []
        with Watch(self.server) as watch:
            for i in range(60):
                s = connect(self.server)
                s.settimeout(5)
                crowd.append(s)
                try:
                    s.sendall(b"POST /v1/completions HTTP/1.1\r\nContent-Length: 8000001\r\n\r\n" + b" " * 8000000)
                except OSError:
                    pass  # refused, or cut
        self.assertHolds(watch.peak - before, 100)
        self.assertLessEqual(self.server.metric("http_memory_peak_bytes"), 64 << 20)
        self.assertGreater(self.server.metric("http_memory_peak_bytes"), 16 << 20)
        for s in crowd:
            s.close()
        self.quiet()

    def test_answers_that_nobody_reads(self):
        before, crowd = resident(self.server), []
        body = json.dumps({"tokens": [1] * 400000}).encode()
        ask = json.dumps({"prompt": [1, 2, 3], "max_tokens": 200, "ignore_eos": True, "logprobs": 20, "n": 8}).encode()
        with Watch(self.server) as watch:
            for i in range(40):
                s = connect(self.server)
                s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                s.sendall(post("/v1/completions", ask) if i % 2 else post("/detokenize", body))
                crowd.append(s)
            self.server.wait_for(lambda: self.server.metric("num_requests_running") == 0, 60 * SLOW)
        self.assertHolds(watch.peak - before, 120)
        for s in crowd:
            s.close()
        self.quiet()


class Key(Gate):
    ARGS = [TINY, "--api-key", "sesame"]

    def test_the_key_comes_before_the_body(self):
        for words in [b"POST /v1/completions HTTP/1.1\r\nContent-Length: 8000000\r\n\r\n",
                      b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
                      b"POST /v1/completions HTTP/1.1\r\nContent-Length: 8\r\nExpect: 100-continue\r\n\r\n",
                      b"POST /v1/completions HTTP/1.1\r\nAuthorization: Bearer sesam\r\nContent-Length: 8000000\r\n\r\n",
                      b"POST /v1/completions HTTP/1.1\r\nContent-Length: 0\r\nTransfer-Encoding: \r\n\r\n"]:
            self.assertIn(status_of(self.server, words), (400, 401))
        trailer = b"POST /tokenize HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nAuthorization: Bearer sesame\r\n\r\n"
        self.assertEqual(status_of(self.server, trailer), 401)

    def test_schemes(self):
        ask = lambda value: self.server.raw("GET", "/v1/models", headers={"Authorization": value})[0].status
        for good in ["Bearer sesame", "bearer sesame", "BEARER  sesame"]:
            self.assertEqual(ask(good), 200, good)
        for bad in ["Bearer Sesame", "sesame", "Basic sesame", "Bearer sesame sesame", "Bearer", ""]:
            self.assertEqual(ask(bad), 401, bad)
        self.assertEqual(self.server.raw("GET", "/openapi.json")[0].status, 200)


class Strangers(Gate):
    ARGS = [TINY, "--allow-origin", "http://page.example"]

    def ask(self, body=b'{"prompt":[1],"max_tokens":1}', method="POST", path="/v1/completions", **headers):
        return self.server.raw(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})[0]

    def test_names_of_the_server(self):
        for host, status in [("localhost", 200), ("127.0.0.1:1", 200), ("[::1]:8000", 200), ("evil.example", 403), ("localhost.evil.example", 403),
                             ("127.0.0.1.evil.example:8000", 403)]:
            self.assertEqual(self.ask(Host=host, Content_Type="application/json").status, status, host)
            self.assertEqual(self.ask(None, "GET", "/v1/models", Host=host).status, status, host)

    def test_pages(self):
        for origin in ["http://evil.example", "null", "http://page.example", "https://localhost"]:
            for kind in ["text/plain", "application/x-www-form-urlencoded"]:
                self.assertEqual(self.ask(Origin=origin, Content_Type=kind).status, 403, (origin, kind))
        good = self.ask(Origin="http://page.example", Content_Type="application/json")
        self.assertEqual((good.status, good.getheader("Access-Control-Allow-Origin")), (200, "http://page.example"))
        other = self.ask(Origin="http://evil.example", Content_Type="application/json")
        self.assertIsNone(other.getheader("Access-Control-Allow-Origin"))
        wrong = self.ask(b"{}", Origin="http://page.example", Content_Type="application/json")
        self.assertEqual((wrong.status, wrong.getheader("Access-Control-Allow-Origin")), (400, "http://page.example"))

    def test_preflights(self):
        ask = dict(Access_Control_Request_Method="POST", Access_Control_Request_Headers="authorization,content-type,x-stainless-lang,x-stainless-timeout,openai-beta")
        good = self.ask(None, "OPTIONS", Origin="http://page.example", **ask)
        self.assertEqual(good.status, 204)
        self.assertEqual(set(good.getheader("Access-Control-Allow-Headers").split(", ")), set(ask["Access_Control_Request_Headers"].split(",")))
        bad = self.ask(None, "OPTIONS", Origin="http://evil.example", **ask)
        self.assertIsNone(bad.getheader("Access-Control-Allow-Origin"))
        self.assertGreaterEqual(bad.status, 400)


class Crowds(Gate):
    def test_idle_connections_lock_nobody_out(self):
        crowd = []
        for i in range(4300):
            s = socket.socket()
            s.settimeout(30)
            s.connect(("127.0.0.1", self.server.port))
            if i % 4 == 1:
                s.send(b"GET /health HT")
            crowd.append(s)
            if i % 100 == 99:
                self.assertEqual(self.server.raw("GET", "/health")[0].status, 200)
        for _ in range(10):
            begin = time.time()
            self.assertEqual(self.server.json("POST", "/v1/completions", {"prompt": [1], "max_tokens": 1})[0], 200)
            self.assertLess(time.time() - begin, SOON)
        for s in crowd:
            s.close()
        self.server.wait_for(lambda: self.server.metric("http_connections") < 10)

    def test_who_leaves_while_it_is_read_leaves_nothing(self):
        body = json.dumps({"prompt": [[1] * 50] * 200, "n": 2, "max_tokens": 1}).encode()
        for i in range(30):
            with connect(self.server) as s:
                s.sendall(post("/v1/completions", body))
                time.sleep(i * 0.001)
        self.quiet()


class Templates(Gate):
    ARGS = [*tiny_model(hostile_template()), "--threads", 1, "--http-memory", "64M"]

    def test_a_costly_template_holds_nobody_up(self):
        rng = random.Random(1)
        asks = [post("/v1/chat/completions", json.dumps(conversation(rng, chat_template_kwargs={"attack": i})).encode()) for i in range(len(HOSTILE))]
        before = resident(self.server)
        with Watch(self.server) as watch, concurrent.futures.ThreadPoolExecutor(6) as pool:
            for i, status in enumerate(pool.map(lambda ask: status_of(self.server, ask), asks)):
                self.assertIn(status, (400, 503), HOSTILE[i])
        self.assertLess(watch.slowest, SOON)
        self.assertHolds(watch.peak - before, 110)
        self.assertEqual(self.server.json("POST", "/v1/chat/completions", conversation(rng))[0], 200)
        self.quiet()

    def test_over_its_budget_a_template_is_stopped(self):
        for i, template in enumerate(HOSTILE):
            begin = processor_seconds(self.server)
            status, answer = self.server.json("POST", "/v1/chat/completions", conversation(random.Random(1), chat_template_kwargs={"attack": i}))
            self.assertIn(status, (400, 503), template)
            self.assertLess(processor_seconds(self.server) - begin, 2 * SLOW, template)  # 0.2 s at most; attack.py measures it


class Texts(Gate):
    """What takes long to tokenize: a million pieces of one letter and one digit."""

    ARGS = [*tiny_model(), "--max-queue", 2, "--http-memory", "4G"]
    LONG = post("/tokenize", json.dumps({"prompt": "a1" * (1000000 if SLOW == 1 else 300000)}).encode())
    SHORT = post("/tokenize", json.dumps({"prompt": "a1" * 10000}).encode())  # for the same workers

    def seconds(self, words):
        begin = processor_seconds(self.server)
        self.assertEqual(status_of(self.server, words), 200)
        return processor_seconds(self.server) - begin

    def test_a_client_that_left_is_not_worked_for(self):
        long = self.seconds(self.LONG)
        begin = processor_seconds(self.server)
        for _ in range(2):  # as many as there are workers
            with connect(self.server) as s:
                s.sendall(self.LONG)
                time.sleep(long / 20)
                reset_at_close(s)
        self.seconds(self.SHORT)  # which waits for a worker: with both texts read to their end that were twice as long
        self.assertLess(processor_seconds(self.server) - begin, long)
        self.quiet()

    def test_a_signal_stops_the_reading(self):
        long = self.seconds(self.LONG)
        server = Server(*self.ARGS)
        crowd = []
        for _ in range(10):
            crowd.append(connect(server))
            crowd[-1].sendall(self.LONG)
        time.sleep(long / 4)
        begin = resource.getrusage(resource.RUSAGE_CHILDREN)  # of those that have ended
        self.assertEqual(server.stop(), 0)
        end = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.assertLess(end.ru_utime - begin.ru_utime, 5 * long)  # of ten times
        for s in crowd:
            s.close()

    def test_a_submit_that_is_refused_leaves_the_queue(self):
        body = {"prompt": "a", "max_tokens": 1, "n": 2}
        for _ in range(5):
            for stop in ["", [""], ["x" * 100000]]:  # which only the engine checks
                status, answer = self.server.json("POST", "/v1/completions", {**body, "stop": stop})
                self.assertEqual((status, self.server.metric("num_requests_queued")), (400, 0), answer)
            self.assertEqual(self.server.json("POST", "/v1/completions", body)[0], 200)
        self.quiet()

    def test_sentences_have_no_control_characters(self):
        evil = "\x1b[2J\n\u202e\x00"
        for path, body in [("/v1/completions", {"prompt": "a", "model": evil}), ("/v1/completions", {"prompt": "a", evil: 1}),
                           ("/v1/completions", {"prompt": "a", "logit_bias": {evil: 1}}), ("/v1/completions", {"prompt": "a", "response_format": {"type": evil}}),
                           ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": evil, "text": "x"}]}]}),
                           ("/tokenize", {evil: evil}), ("/nowhere%1b%5b2J", {})]:
            status, answer = self.server.json("POST", path, body)
            self.assertIn(status, (400, 404), answer)
            for text in [answer["error"]["message"], answer["error"]["param"] or ""]:
                self.assertTrue(text.isprintable(), repr(text))
                self.assertLess(len(text), 2500)


class Disks(unittest.TestCase):
    def test_a_full_one_for_the_log(self):
        with open("/dev/full", "w") as full:
            self.answers_whatever_becomes_of(full)

    def test_a_log_whose_reader_has_gone(self):
        reader, writer = os.pipe()
        os.close(reader)
        with open(writer, "w") as log:
            self.answers_whatever_becomes_of(log)

    def answers_whatever_becomes_of(self, log):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        server = Server.__new__(Server)
        server.process, server.port = subprocess.Popen([PROGRAM, "serve", TINY, "--port", str(port)], stderr=log), port
        ask = {"prompt": [1, 2, 3], "max_tokens": 4, "temperature": 0}

        def is_up():
            self.assertIsNone(server.process.poll(), "the server has died")
            try:
                return server.raw("GET", "/ready")[0].status == 200
            except ConnectionRefusedError:
                return False

        server.wait_for(is_up, 60 * SLOW)
        expected = server.json("POST", "/v1/completions", ask)[1]["choices"]
        for _ in range(100):
            self.assertEqual(server.raw("POST", "/v1/completions", {**ask, "temprature": 1})[0].status, 400)
            self.assertEqual(server.json("POST", "/v1/completions", ask)[1]["choices"], expected)
        server.wait_for(lambda: server.metric("num_requests_running") == 0)  # the engine learns of the end after the client
        self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    unittest.main()
