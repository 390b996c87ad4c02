"""`millrace bench --url` on `millrace serve`, as a user runs both. Standard library only.

Run by ctest with the program's path in MILLRACE; the default model must be in the cache folder, as ./test puts it there.
"""

import contextlib
import html.parser
import http.server
import json
import os
import pathlib
import re
import subprocess
import tempfile
import threading
import unittest
import urllib.request
import xml.etree.ElementTree

PROGRAM = os.environ["MILLRACE"]


@contextlib.contextmanager
def server(*options):
    process = subprocess.Popen([PROGRAM, "serve", "--port", "0", "--served-model-name", "small", *options], stderr=subprocess.PIPE, text=True)
    try:
        for line in process.stderr:
            if found := re.search(r"http://[\d.]+:\d+", line):
                break
        yield found.group()
    finally:
        process.terminate()
        process.communicate(timeout=60)


def bench(*args):
    small = [] if {"--max-tokens", "--load-file"} & set(args) or "--url" not in args else ["--prompt-tokens", "8-16", "--max-tokens", 6]
    words = [PROGRAM, "bench", *small, *args]
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=300)


class Server(unittest.TestCase):
    def test_static_batches_say_for_how_many_they_wait(self):
        words = [PROGRAM, "serve", "--port", "0", "--batching", "static", "--max-seqs", "3"]
        with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
            for line in process.stderr:
                if line.startswith("static batches"):
                    self.assertIn("before 3 requests", line)
                    process.terminate()
                    break
            else:
                self.fail("it does not say so")


class Load(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.url = cls.enterClassContext(server())

    def rows(self, *args):
        done = bench("--url", self.url, "--json", *args)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def test_streams_write_every_token_that_was_asked_for(self):
        rows = self.rows("--streams", "1,4", "--requests", 12, "--label", "here")
        self.assertEqual([r["streams"] for r in rows], [1, 4])
        for r in rows:
            self.assertEqual((r["requests"], r["failed"], r["output_tokens"], r["label"], r["model"]), (12, 0, 72, "here", "small"))
            self.assertTrue(12 * 8 <= r["prompt_tokens"] <= 12 * 16, r["prompt_tokens"])
            self.assertAlmostEqual(r["tokens_per_s"] * r["seconds"], 72, places=6)
            self.assertEqual(r["goodput_share"], 1)
            self.assertLessEqual(r["ttft_s"]["p50"], r["ttft_s"]["p99"])
            self.assertLess(r["ttft_s"]["p50"], r["e2e_s"]["p50"])

    def test_arrivals_take_their_time(self):
        row, = self.rows("--rate", 50, "--requests", 40, "--ttft-deadline", 1e-6)
        self.assertEqual((row["rate"], row["streams"], row["failed"]), (50, None, 0))
        self.assertGreater(row["seconds"], 0.3)  # 39 gaps of 20 ms on average; less than half of it has a chance of 1e-6
        self.assertEqual(row["goodput_share"], 0)  # nobody answers within a nanosecond

    def test_metrics_say_what_the_load_cost(self):
        def metrics():
            with urllib.request.urlopen(self.url + "/metrics") as reply:
                lines = [line.split() for line in reply.read().decode().splitlines() if line.startswith("millrace_") and "{" not in line]
            return {name.removeprefix("millrace_"): float(value) for name, value in lines}

        before = metrics()
        self.rows("--streams", 4, "--requests", 8, "--warmup", 0)
        after = metrics()
        cost = {key: after[key] - before[key] for key in ("engine_flops_total", "engine_bytes_total", "computed_tokens_total", "engine_steps_total")}
        blocks, table = 134_479_872 - 49152 * 576, 49152 * 576
        rows, weights = cost["computed_tokens_total"], blocks * 20 / 32
        behind = 576 * 576 + 3 * 576 * 1536  # what prompts leave out in the last block, but for their last row
        self.assertTrue(2 * rows * (blocks - behind) < cost["engine_flops_total"] < 2 * rows * (blocks + table) * 1.02, cost)
        self.assertTrue(weights < cost["engine_bytes_total"] / cost["engine_steps_total"] < (weights + table * 34 / 32) * 1.1, cost)
        for name in ("memory_limit_ratio", "compute_limit_ratio"):
            self.assertGreaterEqual(after[name], 0)
        for name in ("memory_limit_bytes_per_second", "compute_limit_flops_per_second"):  # of the start, once and for all
            self.assertGreater(after[name], 1e8)
            self.assertEqual(after[name], before[name])

    def test_requests_from_a_file(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "load.jsonl"
            file.write_text('{"prompt_tokens": 9, "output_tokens": 3}\n{"prompt": [7, 8], "max_tokens": 2}\n{"prompt": "Hello", "max_tokens": 4}\n')
            page = pathlib.Path(folder) / "page.html"
            row, = self.rows("--load-file", file, "--warmup", 0, "--html", page)
            self.assertEqual((row["requests"], row["failed"], row["output_tokens"]), (3, 0, 9))
            self.assertEqual((row["prompt_length"], row["output_length"]), (None, None))
            self.assertEqual(page.read_text().count("<td>the file's"), 2)

    def test_a_page_of_several_runs_that_loads_nothing(self):
        with tempfile.TemporaryDirectory() as folder:
            first, page = pathlib.Path(folder) / "first.json", pathlib.Path(folder) / "page.html"
            first.write_text(json.dumps(self.rows("--streams", "1,2", "--requests", 4, "--label", "one <&> two")))
            both = self.rows("--streams", 2, "--requests", 4, "--label", "later", "--compare", first, "--html", page)
            self.assertEqual([r["label"] for r in both], ["one <&> two", "one <&> two", "later"])
            text = page.read_text()
            html.parser.HTMLParser().feed(text)
            self.assertEqual(text.count("<svg"), 2)
            self.assertEqual(text.count("<polyline"), 4)  # two servers in two pictures
            self.assertIn("one &lt;&amp;&gt; two", text)
            self.assertIsNone(re.search(r"<script|<link|<img|url\(|@import|https?://(?!127|www.w3.org/2000/svg\")", text))
            rows = json.loads(first.read_text())
            for row, speed, latency in zip(rows, (30, 150), (0.01, 0.02)):  # settled, so that no label is in another's way
                row |= {"tokens_per_s": speed, "ttft_s": row["ttft_s"] | {"p50": latency}, "tpot_s": row["tpot_s"] | {"p50": latency}}
            for share, marks in ((0.0, 0), (0.5, 2)):  # a busy machine's points are marked, in both pictures
                first.write_text(json.dumps([row | {"others_share": share} for row in rows]))
                bench("--compare", first, "--html", page)
                self.assertEqual(page.read_text().count(">~1</text>"), marks)
                self.assertEqual(page.read_text().count("~ measured on a busy machine"), marks)
            first.write_text(json.dumps(rows[:1]))
            later = bench("--url", self.url, "--streams", 1, "--requests", 4, "--ttft-deadline", 60, "--compare", first, "--html", page)
            goodput = [line.split("|")[-1].strip() for line in later.stdout.splitlines() if line.count("|") == 4][2:]
            self.assertEqual((goodput[0], goodput[1] == "-", len(goodput)), ("-", False, 2), later.stdout)  # under other deadlines: none
            self.assertIn("measured under other deadlines", later.stdout)
            self.assertIn("<td>no deadline</tr>", page.read_text())
            self.assertIn("<td>TTFT 60.00 s</tr>", page.read_text())
            alone = bench("--compare", first)
            self.assertEqual(alone.returncode, 0, alone.stderr)
            self.assertIn("one <&> two", alone.stdout)

    def test_what_fails_is_counted_and_named(self):
        done = bench("--url", self.url, "other-model", "--warmup", 0, "--requests", 3, "--json")
        self.assertEqual(done.returncode, 1)
        row, = json.loads(done.stdout)
        self.assertEqual((row["failed"], row["errors"]), (3, {"404 Not Found": 3}))

    def test_one_sentence_when_nothing_answers(self):
        for args, words in [(["--url", "http://127.0.0.1:9"], "connection refused"), (["--url", "localhost:8000"], "http://host:port"),
                            (["--url", self.url, "other-model"], "404 Not Found"), (["--compare", __file__], "not a list of rows")]:
            done = bench(*args)
            self.assertEqual(done.returncode, 1, args)
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
            self.assertIn(words, done.stderr)


    def test_rows_repeat_until_they_agree(self):
        row, = self.rows("--requests", 4, "--repeat", 2)
        self.assertEqual((row["repeat"], row["requests"], row["output_tokens"]), (2, 4, 24))
        self.assertAlmostEqual(row["spread"], row["seconds"] / row["best_seconds"] - 1, places=9)
        row, = self.rows("--requests", 4, "--spread", 1, "--budget", "60s")
        self.assertTrue(row["repeat"] > 3 or (row["repeat"] == 3 and row["spread"] <= 1), row)  # more where the machine is busy
        row, = self.rows("--requests", 4, "--spread", 0, "--budget", "0.001s")
        self.assertEqual((row["repeat"], row["spread"]), (1, None))

    def test_who_else_was_busy_is_known_of_a_server_here(self):
        row, = self.rows("--requests", 4, "--repeat", 1)
        self.assertTrue(0 <= row["others_share"] <= 1, row)

    def test_pictures_alone(self):
        with tempfile.TemporaryDirectory() as folder:
            self.rows("--requests", 2, "--repeat", 1, "--svg", folder)
            for name in ("ttft", "tpot"):
                xml.etree.ElementTree.parse(pathlib.Path(folder) / f"{name}.svg")


class Loading(unittest.TestCase):
    def refusal(self, body, *options):
        class Answer(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(503)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_POST(self):
                self.rfile.read(int(self.headers["Content-Length"]))
                self.do_GET()

            def log_message(self, *_):
                pass

        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as stub:
            threading.Thread(target=stub.serve_forever, daemon=True).start()
            done = bench("--url", f"http://127.0.0.1:{stub.server_port}", *options)
            stub.shutdown()
        self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1), done.stderr)
        return done.stderr

    def test_a_server_that_loads_is_said_to_load(self):
        ours = b'{"error": {"message": "the model is being loaded: 37 % of it is there", "code": "loading", "type": "service_unavailable_error"}}'
        for options in ([], ["some-model"]):
            self.assertRegex(self.refusal(ours, *options), "is still loading .*37 % of it is there")

    def test_other_servers_keep_their_words(self):
        llama = b'{"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}'
        for options in ([], ["some-model"]):
            self.assertRegex(self.refusal(llama, *options), "503.*Loading model")
        self.assertRegex(self.refusal(b"upstream is down"), "503.*upstream is down")


class Key(unittest.TestCase):
    def test_the_key_is_sent(self):
        with server("--api-key", "secret") as url:
            self.assertEqual(bench("--url", url, "--requests", 2, "--api-key", "secret").returncode, 0)
            refused = bench("--url", url, "--requests", 2)
            self.assertEqual(refused.returncode, 1)
            self.assertIn("401", refused.stderr)


if __name__ == "__main__":
    unittest.main()
