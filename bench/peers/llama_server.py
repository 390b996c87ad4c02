#!/usr/bin/env python3
"""`millrace serve` beside llama-server on this machine: the same GGUF files, threads and load, alternating.

    bench/peers/llama_server.py --millrace build/release/millrace [--isa avx2] [--threads N] [--json FILE] [--html FILE] [--svg FOLDER]

llama-server comes from the source package llama-cpp-python and is compiled here (about 10 minutes on 2 cores, once), for this processor
or for AVX2 only; files of other formats than the default model's are made from it. Both are kept in the cache folder. llama-server gets what it asks for to be fast: a slot for each stream, flash attention, continuous batching, all threads for prompts too, no prompt
copies kept in memory. Both servers start afresh for each measurement; `millrace bench --url` sends both the same token
ids, all prompts different, and both write answers of the same length. A table shows the best round and the median of each.
"""

import argparse
import itertools
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from packages import CACHE, LLAMA_CPP, model_files, say  # noqa: E402
from servers import llama_command, llama_server, millrace_command, paused, resume_on_term, running, watched  # noqa: E402

PEERS = ["llama-server", "millrace"]


def load(args, url, name, streams, workload, seed):
    """One row of `millrace bench --url --json`: at least two waves of every stream."""
    prompt, answer = workload
    command = [args.millrace, "bench", "--url", url, "--label", name, "--streams", streams, "--requests",
               max(args.waves * streams, 6), "--prompt-tokens", prompt, "--max-tokens", answer, "--seed", seed, "--repeat", 1, "--json"]
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, check=True)
    row, = json.loads(done.stdout)
    if row["failed"] or row["output_tokens"] != row["requests"] * answer:
        raise SystemExit(f"{name} at {streams} streams failed {row['failed']} requests, {row['errors']}, and wrote {row['output_tokens']} tokens")
    return row


def command_of(args, name, program, file, streams, workload):
    if name == "millrace":
        return millrace_command(args.millrace, file, threads=args.threads, isa=args.isa)
    return llama_command(program, file, threads=args.threads, streams=streams, context=sum(workload) + 16)


def measure_one(args, program, name, form, workload, streams, seed):
    """A row of bench with its format; taken again, up to `tries` times, while other work keeps the machine busy."""
    rows = []
    while not rows or (rows[-1]["others"] > args.busy and len(rows) < args.tries):
        with running(command_of(args, name, program, args.files[form], streams, workload)) as (url, pid), paused(args.pause), watched(pid) as machine:
            row = load(args, url, name, streams, workload, seed)
        rows.append(row | machine | {"format": form})
        time.sleep(args.rest)
    return min(rows, key=lambda row: row["others"])


def measure(args, program):
    runs = []
    for turn in range(args.rounds):
        for form, workload, streams in itertools.product(args.formats, args.workloads, args.streams):
            for name in PEERS if turn % 2 == 0 else PEERS[::-1]:
                row = measure_one(args, program, name, form, workload, streams, seed=turn)
                runs.append(row)
                say(f"round {turn + 1} of {args.rounds}: {form} {workload[0]}/{workload[1]} {streams:>2} streams {name:<12} "
                    f"{row['tokens_per_s']:7.1f} tok/s, TTFT {row['ttft_s']['p50']:.3f} s, other work on {row['others']:.2f} processors")
    return runs


def summary(args, runs):
    """One row a format, workload and number of streams; ratios above 1 mean that millrace is ahead."""
    rows = []
    for form, workload, streams in itertools.product(args.formats, args.workloads, args.streams):
        row = {"format": form, "prompt": workload[0], "answer": workload[1], "streams": streams}
        for name in PEERS:
            own = [r for r in runs if (r["label"], r["format"], r["streams"], r["prompt_length"], r["output_length"])
                   == (name, form, streams, str(workload[0]), str(workload[1]))]
            speed, ttft = [r["tokens_per_s"] for r in own], [r["ttft_s"]["p50"] for r in own]
            row[name] = {"tokens_per_s": max(speed), "median_tokens_per_s": statistics.median(speed), "ttft_s": min(ttft),
                         "median_ttft_s": statistics.median(ttft), "tpot_s": min(r["tpot_s"]["p50"] for r in own)}
        theirs, ours = (row[name] for name in PEERS)
        for key in ("tokens_per_s", "median_tokens_per_s"):
            row["ratio_" + key] = ours[key] / theirs[key]
        for key in ("ttft_s", "median_ttft_s"):
            row["ratio_" + key] = theirs[key] / ours[key]
        rows.append(row)
    return rows


def cpu_name():
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())


def print_markdown(args, rows, runs, program):
    print(f"{cpu_name()}, {os.cpu_count()} cores; {args.threads} threads, {args.isa}; {args.rounds} alternating rounds: the best, "
          f"and the median in brackets. {LLAMA_CPP}'s llama-server, `{llama_text(args, program)}`. "
          f"`{shlex.join(['bench/peers/llama_server.py', *sys.argv[1:]])}`\n")
    heads = ["weights", "prompt / answer", "streams", "llama-server tok/s", "millrace tok/s", "ratio", "llama-server TTFT s",
             "millrace TTFT s", "ratio"]
    print("| " + " | ".join(heads) + " |\n|" + " --- |" * len(heads))
    for r in rows:
        theirs, ours = (r[name] for name in PEERS)
        cells = [r["format"], f"{r['prompt']} / {r['answer']}", str(r["streams"])]
        cells += [f"{p['tokens_per_s']:.1f} ({p['median_tokens_per_s']:.1f})" for p in (theirs, ours)]
        cells.append(f"{r['ratio_tokens_per_s']:.2f} ({r['ratio_median_tokens_per_s']:.2f})")
        cells += [f"{p['ttft_s']:.3f} ({p['median_ttft_s']:.3f})" for p in (theirs, ours)]
        cells.append(f"{r['ratio_ttft_s']:.2f} ({r['ratio_median_ttft_s']:.2f})")
        print("| " + " | ".join(cells) + " |")
    print(f"\nOther work kept {max(r['others'] for r in runs):.2f} processors busy in the most disturbed run.")
    print("TTFT is the median over the requests of a round. A ratio above 1 means that millrace is ahead.")


def llama_text(args, program):
    words = llama_command(program.name, "MODEL", threads=args.threads, streams=args.streams[-1],
                          context=sum(args.workloads[0]) + 16)
    return shlex.join(map(str, words))


def write_pictures(args, runs):
    """The best round of each server and load as curves in one picture, drawn by `millrace bench --compare`."""
    best = {}
    for r in runs:
        key = (r["label"], r["format"], r["prompt_length"], r["streams"])
        if key not in best or r["tokens_per_s"] > best[key]["tokens_per_s"]:
            best[key] = r | {"label": f"{r['label']} {r['format']} {r['prompt_length']}/{r['output_length']}"}
    files = [word for option, path in (("--html", args.html), ("--svg", args.svg)) if path for word in (option, path)]
    with tempfile.NamedTemporaryFile("w", suffix=".json") as rows:
        json.dump(list(best.values()), rows)
        rows.flush()
        subprocess.run([args.millrace, "bench", "--compare", rows.name, *files], check=True, stdout=subprocess.DEVNULL)


def workload_of(text):
    prompt, answer = text.split("/")
    return int(prompt), int(answer)


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millrace", type=Path, required=True, help="the program")
    parser.add_argument("--llama-server", type=Path, help="a program that is already there; compiled if not given")
    parser.add_argument("--model", type=Path, default=CACHE / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf",
                        help="NAME.FORMAT.gguf, the source of the other formats")
    parser.add_argument("--formats", nargs="+", default=["Q4_1", "Q4_0"], choices=["Q4_1", "Q4_0", "Q8_0", "F16"])
    parser.add_argument("--streams", nargs="+", type=int, default=[1, 4, 16, 32])
    parser.add_argument("--workloads", nargs="+", type=workload_of, default=[(128, 128)], metavar="PROMPT/ANSWER", help="in tokens")
    parser.add_argument("--isa", choices=["native", "avx2"], default="native", help="of both programs")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--waves", type=int, default=2, help="requests of each stream")
    parser.add_argument("--busy", type=float, default=0.15, help="processors that other work may take before a run is taken again")
    parser.add_argument("--tries", type=int, default=3, help="of one run on a busy machine; the least disturbed counts")
    parser.add_argument("--pause", nargs="+", default=[], metavar="NAME", help="processes to stop while a measurement runs: cc1plus")
    parser.add_argument("--rest", type=float, default=0, help="seconds between measurements, for those that were stopped")
    parser.add_argument("--json", type=Path, help="write every run and the summary there")
    parser.add_argument("--add", nargs="+", type=Path, default=[], metavar="FILE", help="runs of earlier measurements (--json), to be shown too")
    parser.add_argument("--html", type=Path, help="write the latency-throughput curves there")
    parser.add_argument("--svg", type=Path, help="the same pictures alone, into this folder: ttft.svg, tpot.svg")
    args = parser.parse_args()
    if not args.millrace.exists():
        parser.error(f"no program at {args.millrace}")
    return args


def main():
    args = parse_args()
    resume_on_term()
    args.files = model_files(args.model, args.formats, CACHE / "peers" / "models")
    program = args.llama_server or llama_server(args.isa)
    earlier = [run for file in args.add for run in json.loads(file.read_text())["runs"]]
    runs = measure(args, program)
    rows = summary(args, runs)
    if args.json:
        args.json.write_text(json.dumps({"cpu": cpu_name(), "threads": args.threads, "isa": args.isa, "rows": rows, "runs": runs}, indent=1))
    if args.html or args.svg:
        write_pictures(args, [*earlier, *runs])
    print_markdown(args, rows, runs, program)


if __name__ == "__main__":
    main()
