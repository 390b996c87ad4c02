#!/usr/bin/env python3
"""What the prefix cache gives: time to the first token of a long shared prompt, for the first request and for later ones.

    bench/prefix_ttft.py --millrace build/release/millrace [--shared 2000] [--own 16] [--rounds 5]

Each round has a prompt of its own: `shared` tokens, then `own` tokens that differ from request to request. The first request finds
nothing in the cache, the second one the shared part. Both go through `millrace serve` on connections of their own.
"""

import argparse
import http.client
import json
import os
import random
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "peers"))
from servers import millrace_command, paused, resume_on_term, running  # noqa: E402


def ttft(url, tokens):
    """Seconds from connecting to the first streamed text."""
    body = json.dumps({"prompt": tokens, "max_tokens": 4, "temperature": 0, "ignore_eos": True, "stream": True})
    begin = time.perf_counter()
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=300)
    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    if answer.status != 200:
        raise SystemExit(f"status {answer.status}: {answer.read().decode()}")
    first = None
    for line in answer:
        if first is None and line.startswith(b"data: {") and json.loads(line[6:])["choices"][0]["text"]:
            first = time.perf_counter() - begin
    connection.close()
    return first


def cached_tokens(url):
    """The server's own count of prompt tokens that came from the cache."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"))
    connection.request("GET", "/metrics")
    for line in connection.getresponse().read().decode().splitlines():
        if line.startswith("millrace_prefix_cache_hits_total"):
            return float(line.split()[-1])
    return None


def measure(args, url):
    chance = random.Random(args.seed)
    ids = lambda n: [chance.randrange(1000, 21000) for _ in range(n)]  # noqa: E731
    ttft(url, ids(64))  # wakes the threads and touches the memory
    rows = []
    for _ in range(args.rounds):
        shared, before = ids(args.shared), cached_tokens(url)
        first, second = (ttft(url, shared + ids(args.own)) for _ in range(2))
        rows.append({"first_s": first, "second_s": second, "ratio": first / second, "hits": cached_tokens(url) - before})
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millrace", type=Path, required=True, help="the program")
    parser.add_argument("--model", default="SmolLM2-135M-Instruct", help="what to serve")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--shared", type=int, default=2000, help="tokens")
    parser.add_argument("--own", type=int, default=16, help="tokens")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pause", nargs="+", default=[], metavar="NAME", help="processes to stop while it runs: cc1plus")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    resume_on_term()
    with running(millrace_command(args.millrace, args.model, threads=args.threads)) as (url, _), paused(args.pause):
        rows = measure(args, url)
    best = {key: min(row[key] for row in rows) for key in ("first_s", "second_s")}
    middle = {key: statistics.median(row[key] for row in rows) for key in ("first_s", "second_s", "ratio")}
    if args.json:
        print(json.dumps({"rounds": rows, "best": best | {"ratio": best["first_s"] / best["second_s"]}, "median": middle}))
        return
    print(f"{args.shared} shared + {args.own} own tokens, {args.threads} threads, {args.rounds} rounds\n")
    print("| | first request | second request | ratio |\n| --- | --- | --- | --- |")
    print(f"| best TTFT | {1e3 * best['first_s']:.1f} ms | {1e3 * best['second_s']:.1f} ms | {best['first_s'] / best['second_s']:.1f} |")
    print(f"| median TTFT | {1e3 * middle['first_s']:.1f} ms | {1e3 * middle['second_s']:.1f} ms | {middle['ratio']:.1f} |")
    print(f"\nTokens of the second prompts that came from the cache, by the server's count: {[int(row['hits']) for row in rows]}")


if __name__ == "__main__":
    main()
