#!/usr/bin/env python3
"""What open connections cost the server: its resident memory before, and with a thousand of each kind.

idle_streams.py [--streams N] [--json]; the program is build/release/millrace, or what MILLRACE names. One sequence runs at a time,
so that all but one of the streams wait; the memory for state is small and was used before anything is measured.
"""

import argparse
import json
import os
import pathlib
import re
import resource
import socket
import subprocess
import sys

PROGRAM = os.environ.get("MILLRACE", pathlib.Path(__file__).parent.parent / "build" / "release" / "millrace")
N_STATE = 900  # tokens for which there is state
FLAGS = ["--port", 0, "--max-seqs", 1, "--memory", "24M", "--max-context", 1024, "--max-queue", 1 << 20, "--max-queue-tokens", 1 << 40, "--no-prefix-cache"]


class Streams:
    """Connections that are held open."""

    def __init__(self, port):
        self.port, self.sockets = port, []

    def open(self, words, end):
        """Says the words on a new connection and hears everything up to `end`."""
        s = socket.create_connection(("127.0.0.1", self.port), timeout=120)
        s.sendall(words)
        heard = b""
        while end not in heard:
            part = s.recv(65536)
            assert part, heard
            heard += part
        assert heard.startswith(b"HTTP/1.1 200 "), heard
        self.sockets.append(s)

    def close(self):
        for s in self.sockets:
            s.close()
        self.sockets = []


def post(**fields):
    body = json.dumps({"ignore_eos": True, **fields}).encode()
    return b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


def resident_kib(pid):
    return int(re.search(r"VmRSS:\s+(\d+) kB", pathlib.Path(f"/proc/{pid}/status").read_text()).group(1))


def measure(process, n):
    port = int(re.search(r":(\d+)/v1", process.stderr.readline()).group(1))
    streams = Streams(port)
    streams.open(post(prompt=[7] * N_STATE, max_tokens=1), b'"usage"')
    streams.close()
    before = resident_kib(process.pid)
    rows = []

    def row(what):
        grown = resident_kib(process.pid) - before
        rows.append({"open": what, "connections": len(streams.sockets), "resident_mib": (before + grown) / 1024, "grown_mib": grown / 1024,
                     "kib_each": grown / max(1, len(streams.sockets))})

    row("nothing")
    for _ in range(n):
        streams.open(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", b"}")
    row("kept-alive connections")
    streams.close()
    streams.open(post(prompt=[7], max_tokens=N_STATE, stream=True), b"data:")
    for _ in range(n):
        streams.open(post(prompt=[7] * 100, max_tokens=100, stream=True), b"\r\n\r\n")
    row("streams that wait, prompts of 100 tokens")
    streams.close()
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, args.streams + 100)), hard))
    process = subprocess.Popen([PROGRAM, "serve", *map(str, FLAGS)], stderr=subprocess.PIPE, text=True)
    try:
        rows = measure(process, args.streams)
    finally:
        process.kill()
        process.wait()
    if args.json:
        return print(json.dumps(rows, indent=1))
    print(f"{'open':42}{'count':>7}{'resident':>13}{'grown by':>13}{'each':>12}")
    for r in rows:
        print(f"{r['open']:42}{r['connections']:>7}{r['resident_mib']:>9.1f} MiB{r['grown_mib']:>9.1f} MiB{r['kib_each']:>8.1f} KiB")


if __name__ == "__main__":
    sys.exit(main())
