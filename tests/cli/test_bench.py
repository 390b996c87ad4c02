"""`millrace bench` as a user runs it: figures, tables, pages. Standard library only.

Run by ctest with the program's path in MILLRACE; the default model must be in the cache folder, as ./test puts it there.
"""

import pathlib
import shutil
import subprocess
import tempfile
import time
import unittest

from program import FIXTURES, MODEL, PROGRAM, as_json, ok, run


class Bench(unittest.TestCase):
    def test_techniques_are_measured_against_their_plain_forms(self):
        def growth(by_name, form, key):
            """Over three doublings."""
            return by_name["kv-cache", f"{form}, 256 + 64 tokens"][key] / by_name["kv-cache", f"{form}, 32 + 8 tokens"][key]

        for last in (False, False, True):  # time itself grows faster without the cache, 64 and 512 times against 8 and 64: a busy machine may be asked again
            rows = as_json("bench", "--techniques", "kv-cache,copy-on-write", "--repeat", 1)
            by_name = {(r["technique"], r["workload"]): r for r in rows}
            grown = {key: [growth(by_name, form, key) for form in ("none", "kept")] for key in ("seconds", "attention_seconds")}
            if all(plain > kept for plain, kept in grown.values()):
                break
            self.assertFalse(last, grown)
        self.assertEqual(len(rows), 8 + 2)
        for n in (32, 64, 128, 256):
            plain, kept = (by_name["kv-cache", f"{form}, {n} + {n // 4} tokens"] for form in ("none", "kept"))
            self.assertEqual(plain["computed_tokens"], sum(range(n, n + n // 4)))
            self.assertEqual(kept["computed_tokens"], n + n // 4 - 1)
            self.assertEqual(plain["gain"], 1)
            if n > 32:  # attention's flops: T^3 without the cache, T^2 with it
                self.assertGreater(kept["attention_seconds"], 0)
                self.assertAlmostEqual(plain["growth"]["attention_flops"], 3, delta=0.05)
                self.assertAlmostEqual(kept["growth"]["attention_flops"], 2, delta=0.05)
                self.assertGreater(plain["flops"], 4 * kept["flops"])
        self.assertEqual(by_name["copy-on-write", "8 requests"]["computed_tokens"], 8 * (512 + 15))
        self.assertEqual(by_name["copy-on-write", "n = 8"]["computed_tokens"], 512 + 8 * 15)

    def test_techniques_of_batching(self):
        self.assertEqual([r["workload"] for r in as_json("bench", FIXTURES / "mamba", "--techniques", "batching", "--repeat", 1)],
                         ["one at a time", "static", "continuous"])
        text = ok("bench", self.TINY, "--techniques", "ragged", "--repeat", 1)
        self.assertRegex(text, r"(?m)^  padded +.* plain ")
        self.assertRegex(text, r"(?m)^  ragged +.* ~?[\d.]+× ")
        for column in ("gain:", "spread:", "computed:", "TTFT, end:", "gap:", "at once:", "preempt:", "waste:"):
            self.assertIn(column, text)
        rows = as_json("bench", self.TINY, "--techniques", "arrivals,ragged,kv-formats", "--repeat", 1)
        formats = ("f32", "f16", "bf16", "fp8_e4m3", "fp8_e5m2", "int8", "int4")
        by_name = {(r["technique"], r["workload"]): r for r in rows}
        self.assertEqual(list(by_name), [("arrivals", "static"), ("arrivals", "dynamic"), ("arrivals", "continuous"), ("ragged", "padded"),
                                         ("ragged", "ragged"), *(("kv-formats", f) for f in formats)])
        for plain, better in ((("arrivals", "static"), ("arrivals", "continuous")), (("ragged", "padded"), ("ragged", "ragged"))):
            self.assertGreater(by_name[plain]["computed_tokens"], by_name[better]["computed_tokens"])
        for more, less in (("f32", "f16"), ("f16", "int8"), ("int8", "fp8_e4m3"), ("fp8_e5m2", "int4")):
            self.assertGreater(by_name["kv-formats", more]["bytes"], by_name["kv-formats", less]["bytes"])

    def test_nothing_is_compared_with_itself(self):
        alone = FIXTURES / "gguf_q4_1" / "model.gguf"
        for model, words in ((alone, "gguf_variants.py"), (self.TINY, "NAME.Q8_0.gguf")):
            refused = run("bench", model, "--techniques", "formats", "--repeat", 1)
            self.assertEqual((refused.returncode, refused.stdout, refused.stderr.count("\n")), (1, "", 1))
            self.assertIn(words, refused.stderr)
        recurrent = ["bench", FIXTURES / "mamba", "--techniques", "all", "--repeat", 1]
        text = ok(*recurrent)
        for name in ("kv-cache", "paging", "preemption", "kv-formats", "formats"):  # no keys and values; no GGUF file
            self.assertRegex(text, rf"(?m)^{name}: .*\n  not measured: .*\n")
        rows = as_json(*recurrent)
        self.assertEqual({r["technique"] for r in rows if "error" in r}, {"kv-cache", "paging", "preemption", "kv-formats", "formats"})
        self.assertTrue(all("gain" in r for r in rows if "error" not in r))
        with tempfile.TemporaryDirectory() as folder:
            for form in ("q4_0", "q4_1"):
                shutil.copy(FIXTURES / f"gguf_{form}" / "model.gguf", pathlib.Path(folder) / f"tiny.{form}.gguf")
            rows = as_json("bench", pathlib.Path(folder) / "tiny.q4_0.gguf", "--techniques", "formats", "--repeat", 1)
            self.assertEqual(sorted(r["workload"] for r in rows), ["q4_0", "q4_1"])
            (pathlib.Path(folder) / "tiny.q4_1.gguf").rename(pathlib.Path(folder) / "tiny.gguf")  # as gguf_variants.py would find it
            rows = as_json("bench", pathlib.Path(folder) / "tiny.gguf", "--techniques", "formats", "--repeat", 1)
            self.assertEqual(sorted(r["workload"] for r in rows), ["q4_0", "tiny.gguf"])

    TINY = FIXTURES / "llama_gqa"  # 2 layers, context 256

    def test_rows(self):
        rows = as_json("bench", "--prefill", 32, "--decode", 8, "--repeat", 1)
        self.assertEqual([r["workload"] for r in rows], ["prefill", "decode"])
        for row in rows:
            self.assertGreater(row["tokens_per_s"], 0)
            self.assertAlmostEqual(row["share_of_limit"], row["limit_seconds"] / row["seconds"], delta=1e-6)
        # Every weight in 4 bits with scale and minimum a 32, the table in 8 with a scale: read once a token, twice the flops.
        blocks, table = 134_479_872 - 49152 * 576, 49152 * 576
        weights = blocks * 20 / 32 + table * 34 / 32
        self.assertTrue(8 * weights < rows[1]["bytes"] < 8 * weights * 1.02, rows[1])
        self.assertTrue(8 * 2 * (blocks + table) < rows[1]["flops"] < 8 * 2 * (blocks + table) * 1.02, rows[1])
        behind = 576 * 576 + 3 * 576 * 1536  # attention's output and feed-forward: in the last block of the last row alone
        prefill = 2 * (32 * blocks - 31 * behind + table)
        self.assertTrue(prefill < rows[0]["flops"] < prefill * 1.02, rows[0])
        text = ok("bench", "--prefill", 32, "--decode", 8, "--repeat", 1, "--explain")
        for words in (" attend ", "tok/s as it runs", "tok/s taken apart", "norms and gates in"):
            self.assertIn(words, text)
        row = as_json("bench", "--prefill", 32, "--decode", 8, "--repeat", 1, "--explain")[1]
        self.assertAlmostEqual(row["apart_tokens_per_s"] * row["apart_seconds"], row["tokens"], delta=1e-6)
        self.assertLessEqual(sum(op["seconds"] for op in row["operations"]), row["apart_seconds"])
        limits = {op["op"].split()[0]: op["limit_seconds"] for op in row["operations"]}
        self.assertTrue(limits["attend"] > 0 and limits["linear"] > 0, limits)

    def test_lists_of_batches_and_contexts(self):
        rows = as_json("bench", self.TINY, "--batch", "1,3", "--context", "16,64", "--decode", 4, "--repeat", 2)
        shapes = [(r["workload"], r["context"], r["batch"], r["tokens"]) for r in rows]
        self.assertEqual(shapes, [("prefill", s, b, s * b) for s in (16, 64) for b in (1, 3)] + [("decode", s, b, 4 * b) for s in (16, 64) for b in (1, 3)])
        for row in rows:
            self.assertEqual(row["repeat"], 2)
            self.assertIn(row["bound"], ("memory", "compute"))
            self.assertAlmostEqual(row["tokens_per_s"] * row["seconds"], row["tokens"], delta=1e-6)
            self.assertAlmostEqual(row["best_tokens_per_s"] * row["best_seconds"], row["tokens"], delta=1e-6)
            self.assertLessEqual(row["best_seconds"], row["seconds"])  # of two runs, the median is the slower
            self.assertAlmostEqual(row["spread"], row["seconds"] / row["best_seconds"] - 1, delta=1e-9)
            # Probed before the run that does not count and before each that does, and after the last.
            self.assertEqual(len(row["limit_rates"]), 4)
            rates = sorted(row["limit_rates"])
            self.assertAlmostEqual(row["limit_moved"], (rates[-1] - rates[0]) / ((rates[1] + rates[2]) / 2), delta=1e-9)
            self.assertGreater(row["bytes_per_s_limit"], 0)
            self.assertTrue(0 <= row["others_share"] <= 1)
            self.assertEqual(row["steps"], 1 if row["workload"] == "prefill" else 4)
        flops = {(r["workload"], r["context"], r["batch"]): r["flops"] for r in rows}
        self.assertAlmostEqual(flops["prefill", 64, 3] / flops["prefill", 64, 1], 3, delta=1e-9)  # each on its own
        self.assertAlmostEqual(flops["decode", 16, 3] / flops["decode", 16, 1], 3, delta=0.1)  # but not all at equal contexts
        # Speed, limit and share of a printed row are of one run, the median: no speed is above its limit with a share below 100 %.
        text = ok("bench", "--prefill", 16, "--decode", 4, "--repeat", 3).replace("~", "")
        self.assertRegex(text, r"by reading the model's 9\d\.\d+ MB")
        for row in [line.split() for line in text.splitlines() if line.split()[0] in ("prefill", "decode")]:
            tokens, speed, median = float(row[3]), float(row[4]), float(row[6])
            self.assertAlmostEqual(speed / (tokens / median), 1, delta=0.02)
            limit, share = next((float(a), float(b[:-1])) for a, b in zip(row[8:], row[9:]) if b.endswith("%"))
            self.assertAlmostEqual(100 * speed / limit, share, delta=0.6)

    def test_rows_are_shown_as_they_are_measured(self):
        words = [PROGRAM, "bench", self.TINY, "--batch", "1,2", "--context", 16, "--decode", 4, "--budget", "2s", "--spread", 0]
        with subprocess.Popen([str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            came = [(time.monotonic(), line) for line in process.stdout]
        self.assertEqual(process.returncode, 0)
        at = {tuple(line.split()[:2]): when for when, line in came}
        self.assertGreater(at["decode", "2"] - at["prefill", "1"], 1)  # three more rows of two seconds
        # One limit, that of the row: what binds, and how fast that was.
        for _, line in came:
            if line.split()[0] in ("prefill", "decode"):
                self.assertRegex(line, r"(memory at ~?[\d.]+ .?B/s|compute at ~?[\d.]+ .?FLOP/s)( \([\d.]+ .*/s to [\d.]+ .*/s\))?$")

    def test_recurrent_models_too(self):
        for model in ("mamba", "jamba", "mixtral"):
            rows = as_json("bench", FIXTURES / model, "--batch", "1,2", "--context", 16, "--decode", 4, "--repeat", 1)
            self.assertEqual([r["tokens"] for r in rows], [16, 32, 4, 8], model)

    def test_what_does_not_fit_is_a_sentence_in_its_row(self):
        rows = as_json("bench", self.TINY, "--batch", "1,500", "--context", "16,1000", "--repeat", 1, "--memory", "1M")
        for row in rows:
            fits = row["batch"] == 1 and row["context"] == 16
            self.assertEqual("error" not in row, fits, row)
            self.assertEqual("tokens_per_s" in row, fits, row)
        errors = " ".join(r.get("error", "") for r in rows)
        self.assertIn("does not fit", errors)
        self.assertIn("longer than the context of 256", errors)

    def test_all_of_the_context(self):
        args = ["bench", self.TINY, "--context", 256, "--batch", "1,3", "--repeat", 1]  # the model has 256
        rows = as_json(*args)
        self.assertEqual([r["asked_context"] for r in rows], 4 * [256])
        self.assertEqual([r["context"] for r in rows[:3]], [255, 255, 256 - 33])  # a token is written after a prompt, 33 in decode
        self.assertTrue(128 < rows[3]["context"] < 256 - 33, rows[3])  # who is read first writes until all are
        self.assertIn("context of 256 tokens includes the answer", ok(*args))
        rows = as_json("bench", self.TINY, "--context", 256, "--decode", 200, "--repeat", 1)
        self.assertEqual([r["context"] for r in rows], [255, 256])
        self.assertIn("256 tokens and its answer are 457", rows[1]["error"])
        self.assertNotIn("asked_context", as_json(*args[:3], 64, "--repeat", 1)[1])

    def test_plain_forms_are_measured_too(self):
        shape = ["bench", self.TINY, "--batch", 2, "--context", 16, "--decode", 4, "--repeat", 1]
        kept = as_json(*shape)[1]
        for plain in (["--no-kv-cache"], ["--state", "contiguous"], ["--batching", "static"]):
            row = as_json(*shape, *plain)[1]
            self.assertEqual(row["steps"], 4, plain)
            more = row["flops"] / kept["flops"]
            # 17 to 20 rows instead of one, but in the second of two blocks one goes on after the state, and through the output layer
            self.assertTrue(9 < more < 20 if plain == ["--no-kv-cache"] else more == 1, (plain, more))

    def test_runs_until_they_agree_or_the_time_is_spent(self):
        args = ["bench", self.TINY, "--context", 16, "--decode", 2]
        for row in as_json(*args, "--spread", 1, "--budget", "30s"):
            self.assertTrue(row["repeat"] > 3 or (row["repeat"] == 3 and row["spread"] <= 1), row)  # more where the machine is busy
        for row in as_json(*args, "--spread", 0, "--budget", "0.3"):
            self.assertGreaterEqual(row["repeat"], 1)

    def test_a_mixed_load_depends_on_its_seed_alone(self):
        args = ["bench", self.TINY, "--load", "--requests", 20, "--prompt-tokens", "lognormal:16:0.6", "--max-tokens", "2-12", "--repeat", 1]
        first, = as_json(*args, "--seed", 5)
        again, = as_json(*args, "--seed", 5, "--threads", 1)
        other, = as_json(*args, "--seed", 6)
        for key in ("prompt_tokens", "output_tokens", "computed_tokens", "bytes", "flops"):
            self.assertEqual(first[key], again[key], key)
        self.assertNotEqual((first["prompt_tokens"], first["output_tokens"]), (other["prompt_tokens"], other["output_tokens"]))
        self.assertEqual(first["computed_tokens"], first["prompt_tokens"] + first["output_tokens"] - 20)
        self.assertAlmostEqual(first["total_tokens_per_s"] / first["tokens_per_s"], 1 + first["prompt_tokens"] / first["output_tokens"], delta=1e-9)

    def test_a_load_at_many_paces(self):
        args = ["bench", self.TINY, "--load", "--prompt-tokens", "4-8", "--max-tokens", 3, "--repeat", 1]
        rows = as_json(*args, "--streams", "1,4", "--requests", 8)
        self.assertEqual([(r["streams"], r["rate"], r["output_tokens"]) for r in rows], [(1, None, 24), (4, None, 24)])
        self.assertLess(rows[1]["bytes"], rows[0]["bytes"])  # weights are read once for four
        rows = as_json("bench", self.TINY, "--load", "--prompt-tokens", 100, "--max-tokens", 3, "--repeat", 1, "--streams", "2,2,2", "--requests", 4)
        self.assertEqual([r["computed_tokens"] for r in rows], 3 * [4 * 102])  # no row finds the prompts of the row before it
        row, = as_json(*args, "--rate", 100, "--requests", 8, "--batching", "dynamic", "--batch-delay", 0.01)
        self.assertEqual((row["rate"], row["output_tokens"]), (100, 24))

    def test_a_load_from_a_file(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "load.jsonl"
            file.write_text('{"prompt_tokens": 20, "output_tokens": 5}\n{"prompt": [1, 2, 3], "max_tokens": 7}\n')
            row, = as_json("bench", self.TINY, "--load-file", file, "--repeat", 1)
            self.assertEqual((row["requests"], row["prompt_tokens"], row["output_tokens"], row["prompt_length"]), (2, 23, 12, None))
            file.write_text('{"prompt_tokens": 20}\n{"prompt": [1, 2, 3], "max_tokens": 7}\n')  # --max-tokens fills in what a line lacks
            row, = as_json("bench", self.TINY, "--load-file", file, "--max-tokens", 4, "--repeat", 1)
            self.assertEqual((row["prompt_tokens"], row["output_tokens"]), (23, 11))
            refused = run("bench", self.TINY, "--load-file", file, "--prompt-tokens", 9)  # but every line has a prompt
            self.assertEqual(refused.returncode, 2)
            self.assertIn("--prompt-tokens", refused.stderr)
            file.write_text('{"prompt": "Hello there", "max_tokens": 2}\n')
            row, = as_json("bench", "--load-file", file, "--repeat", 1)
            self.assertEqual((row["prompt_tokens"], row["output_tokens"]), (len(as_json("tokenize", MODEL, "Hello there")["tokens"]), 2))


if __name__ == "__main__":
    unittest.main()
