#!/usr/bin/env python3
"""What a step costs besides computing: scheduling, sampling and streaming, by profile.

    bench/overheads.py --millrace build/release/millrace [--streams 16] [--seconds 6]

`perf record` samples the stacks of `millrace serve` while `millrace bench --url` keeps `streams` requests open. Each sample
belongs to a kind of work by the functions in its stack (KINDS below; HTTP threads stream whatever they do). Two shares are printed. Of the processor time: samples
of the kind among all samples. Of the step: what the engine's own thread does while the model does not run, as a share of that thread's
samples, and what the HTTP threads take, as a share of all samples. The second is the larger and the honest one: meanwhile the workers idle.
"""

import argparse
import collections
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "peers"))
from servers import millrace_command, paused, resume_on_term, running, watched  # noqa: E402

# Kind of work -> functions. The first kind with a function anywhere in the stack has the sample.
KINDS = [
    ("sampling", re.compile(r"sample_row|Runner::sample")),
    ("computing", re.compile(r"Model::forward|mr::carry_out|ThreadPool::(work|take_pieces|wait)")),
    ("streaming", re.compile(r"Engine::deliver|Detokenizer|boost::asio|AnswerWriter")),
    ("scheduling", re.compile(r"mr::(Engine|Scheduler|Runner|StateManager|PrefixTree|ThreadPool)")),
]


def kind_of(frames):
    return next((kind for kind, pattern in KINDS if any(pattern.search(frame) for frame in frames)), "streaming")


def stacks(data):
    """(thread, [functions from the innermost outwards]) of every sample."""
    text = subprocess.run(["perf", "script", "-i", data, "-F", "tid,ip,sym"], capture_output=True, text=True, check=True).stdout
    for block in text.split("\n\n"):
        lines = block.strip().splitlines()
        if lines:
            yield int(lines[0].split()[0]), [line.split(None, 1)[-1] for line in lines[1:]]


def record(args, url, pid, data):
    load = [args.millrace, "bench", "--url", url, "--streams", args.streams, "--requests", 100 * args.streams, "--json"]
    client = subprocess.Popen([str(word) for word in load], stdout=subprocess.DEVNULL)
    try:
        time.sleep(args.settle)  # memory is touched, the streams are out of step
        with watched(pid) as machine:
            subprocess.run(["perf", "record", "-q", "-F", str(args.frequency), "--call-graph", "dwarf,8192", "-p", str(pid), "-o", data,
                            "--", "sleep", str(args.seconds)], check=True, stderr=subprocess.DEVNULL)
    finally:
        client.terminate()
        client.wait()
    return machine


def shares(samples):
    """{kind: share of all samples}, {kind: share of a step}; see above."""
    samples = [(thread, kind_of(frames), frames) for thread, frames in samples]
    total = collections.Counter(kind for _, kind, _ in samples)
    engine = {thread for thread, _, frames in samples if any("Engine::" in f for f in frames)}
    on_engine = collections.Counter(kind for thread, kind, _ in samples if thread in engine)
    n, n_engine = len(samples), max(1, sum(on_engine.values()))
    of_step = {kind: on_engine[kind] / n_engine + (total[kind] - on_engine[kind]) / n for kind in total if kind != "computing"}
    of_step["computing"] = 1 - sum(of_step.values())
    return {kind: count / n for kind, count in total.items()}, of_step


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millrace", type=Path, required=True, help="the program")
    parser.add_argument("--model", default="SmolLM2-135M-Instruct", help="what to serve")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--seconds", type=int, default=6)
    parser.add_argument("--settle", type=int, default=6, help="seconds before it")
    parser.add_argument("--frequency", type=int, default=499, help="samples a second and thread")
    parser.add_argument("--pause", nargs="+", default=[], metavar="NAME", help="processes to stop while it runs: cc1plus")
    parser.add_argument("--stacks", action="store_true", help="print the commonest stacks that are not computing")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    resume_on_term()
    with tempfile.TemporaryDirectory() as folder:
        data = str(Path(folder) / "perf.data")
        with running(millrace_command(args.millrace, args.model, threads=args.threads)) as (url, pid), paused(args.pause):
            machine = record(args, url, pid, data)
        samples = list(stacks(data))
    of_time, of_step = shares(samples)
    besides = sum(of_step.get(kind, 0) for kind in ("scheduling", "sampling", "streaming"))
    if args.json:
        print(json.dumps({"samples": len(samples), "of_processor_time": of_time, "of_step": of_step, "overhead": besides, **machine}))
        return
    print(f"{args.streams} streams, {args.threads} threads, {len(samples)} samples; other programs kept {machine['others']:.2f} processors busy\n")
    print("| work | of the processor time | of a step |\n| --- | --- | --- |")
    for kind in ("computing", "scheduling", "sampling", "streaming"):
        print(f"| {kind} | {100 * of_time.get(kind, 0):.1f} % | {100 * of_step.get(kind, 0):.1f} % |")
    print(f"\nScheduling, sampling and streaming together: {100 * besides:.1f} % of a step.")
    if args.stacks:
        common = collections.Counter((kind_of(f), " < ".join(x[:50] for x in f[:6])) for _, f in samples if kind_of(f) != "computing")
        for (kind, stack), count in common.most_common(25):
            print(f"{count:5} {kind:10} {stack}")


if __name__ == "__main__":
    main()
