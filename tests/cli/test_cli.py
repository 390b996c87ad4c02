"""The program as a user meets it: every command, exit status, one-sentence errors. Standard library only.

Run by ctest with the program's path in MILLRACE; the default model must be in the cache folder, as ./test puts it there.
"""

import array
import json
import math
import os
import pathlib
import pty
import shutil
import signal
import struct
import subprocess
import tempfile
import time
import unittest
import xml.etree.ElementTree

PROGRAM = os.environ["MILLRACE"]
FIXTURES = pathlib.Path(__file__).parent.parent / "fixtures" / "models"
MODEL = "SmolLM2-135M-Instruct"
PARIS = ["generate", "--chat", "-p", "What is the capital of France?", "--temperature", "0"]


def run(*args, stdin=None):
    return subprocess.run([PROGRAM, *map(str, args)], capture_output=True, text=True, input=stdin, timeout=300)


def ok(*args, stdin=None):
    result = run(*args, stdin=stdin)
    assert result.returncode == 0, result.stderr
    return result.stdout


def as_json(*args):
    return json.loads(ok(*args, "--json"))


class Generate(unittest.TestCase):
    def test_the_default_model_knows_paris(self):
        self.assertEqual(ok(*PARIS), "The capital of France is Paris.\n")

    def test_json_has_the_documented_shape(self):
        out = as_json(*PARIS)
        expected = json.loads((FIXTURES / "smollm2" / "expected.json").read_text())["prompts"][0]
        self.assertEqual(out["prompt_tokens"], expected["prompt"])
        choice = out["choices"][0]
        self.assertEqual(choice["tokens"][:7], expected["greedy"][:7])
        self.assertEqual(choice["finish_reason"], "stop")
        self.assertEqual(len(choice["logprobs"]), len(choice["tokens"]))
        self.assertEqual(set(out["timing"]), {"ttft_s", "prefill_tokens_per_s", "decode_tokens_per_s"})

    def test_same_seed_same_answer(self):
        args = ["generate", "-p", "Once upon a time", "--max-tokens", 16, "--temperature", 1.2, "-n", 3]
        first, second, other = as_json(*args, "--seed", 7), as_json(*args, "--seed", 7), as_json(*args, "--seed", 8)
        self.assertEqual(first["choices"], second["choices"])
        self.assertNotEqual(first["choices"], other["choices"])
        texts = [c["text"] for c in first["choices"]]
        self.assertEqual(len(set(texts)), 3)

    def test_threads_and_instruction_sets_do_not_change_an_answer(self):
        args = ["generate", "-p", "The mill by the river", "--max-tokens", 12, "--seed", 3, "--logprobs", 2]
        reference = as_json(*args)["choices"]
        self.assertEqual(as_json(*args, "--threads", 1)["choices"], reference)
        self.assertEqual(as_json(*args, "--max-batch-tokens", 2)["choices"], reference)
        for isa in ["scalar", "avx2", "avx512", "vnni", "amx"]:
            result = run(*args, "--isa", isa, "--json")
            if result.returncode == 1 and "cannot run instruction set" in result.stderr:
                print(f"skipped: this machine has no {isa}")
                continue
            self.assertEqual(json.loads(result.stdout)["choices"], reference, isa)

    def test_plain_forms_and_policies_do_not_change_an_answer(self):
        args = ["generate", "-p", "Once upon a time", "--max-tokens", 12, "--temperature", 1, "--seed", 3, "-n", 3]
        expected = as_json(*args)["choices"]
        for plain in (
            ["--batching", "static"],
            ["--batching", "dynamic", "--batch-delay", 0.01],
            ["--state", "contiguous", "--max-context", 256],
            ["--no-kv-cache"],
            ["--no-overlap", "--max-prompt-tokens", 2],
            ["--memory", "4M", "--max-seqs", 3, "--swap", "4M", "--victim", "largest"],
        ):
            self.assertEqual(as_json(*args, *plain)["choices"], expected, plain)

    def test_stop_strings_cross_token_borders(self):
        choice = as_json(*PARIS, "--stop", "France is Pa")["choices"][0]
        self.assertEqual(choice["text"], "The capital of ")
        self.assertEqual(choice["finish_reason"], "stop")

    def test_limits_biases_and_penalties_reach_the_sampler(self):
        choice = as_json(*PARIS, "--max-tokens", 3)["choices"][0]
        self.assertEqual((len(choice["tokens"]), choice["finish_reason"]), (3, "length"))
        first = choice["tokens"][0]
        banned = as_json(*PARIS, "--max-tokens", 3, "--logit-bias", f"{first}=-100")["choices"][0]
        self.assertNotEqual(banned["tokens"][0], first)
        loop = ["generate", "-p", "la la la la la la", "--temperature", 0, "--max-tokens", 24]
        plain, penalized = as_json(*loop), as_json(*loop, "--repetition-penalty", 1.5)
        self.assertLess(len(set(plain["choices"][0]["tokens"])), len(set(penalized["choices"][0]["tokens"])))

    def test_logprobs_are_ordered_alternatives(self):
        choice = as_json(*PARIS, "--logprobs", 3)["choices"][0]
        for token, logprob, top in zip(choice["tokens"], choice["logprobs"], choice["top_logprobs"]):
            self.assertEqual(len(top), 3)
            self.assertEqual(top[0]["token"], token)
            self.assertEqual(top[0]["logprob"], logprob)
            self.assertGreaterEqual(top[0]["logprob"], top[1]["logprob"])

    def test_token_ids_work_without_a_tokenizer(self):
        expected = json.loads((FIXTURES / "llama_gqa" / "expected.json").read_text())
        ids = ",".join(map(str, expected["prompt"]))
        out = as_json("generate", FIXTURES / "llama_gqa", "--tokens", ids, "--temperature", 0, "--max-tokens", len(expected["greedy"]), "--ignore-eos")
        self.assertEqual(out["choices"][0]["tokens"], expected["greedy"])

    def test_options_of_many_values_leave_the_model_alone(self):
        out = as_json("generate", "--tokens", "1,2,3", FIXTURES / "llama_gqa", "--max-tokens", 2, "--temperature", 0, "--ignore-eos")
        self.assertEqual((out["prompt_tokens"], len(out["choices"][0]["tokens"])), ([1, 2, 3], 2))
        out = as_json("generate", "-p", "x", "--stop", "y", FIXTURES / "gguf_q4_1" / "model.gguf", "--max-tokens", 1)
        self.assertIn("gguf_q4_1", out["model"])

    def test_more_answers_than_run_at_once_by_default(self):
        self.assertEqual(len(as_json("generate", FIXTURES / "llama_gqa", "--tokens", "1,2", "--max-tokens", 1, "-n", 20)["choices"]), 20)

    def test_random_weights_need_no_tensors(self):
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(FIXTURES / "qwen3" / "config.json", folder)
            out = as_json("generate", folder, "--random-weights", 1, "--tokens", "1,2,3", "--max-tokens", 4, "--temperature", 0, "--ignore-eos")
            self.assertEqual(len(out["choices"][0]["tokens"]), 4)


class Score(unittest.TestCase):
    def test_scores_and_logits_agree_with_the_oracle(self):
        expected = json.loads((FIXTURES / "qwen2" / "expected.json").read_text())
        tokens = expected["prompt"] + expected["greedy"]
        raw = array.array("f", (FIXTURES / "qwen2" / "logits.f32").read_bytes())
        with tempfile.TemporaryDirectory() as folder:
            npy = pathlib.Path(folder) / "logits.npy"
            out = as_json("score", FIXTURES / "qwen2", "--tokens", ",".join(map(str, tokens)), "--kv-dtype", "f32", "--logits", npy)
            data = npy.read_bytes()
        self.assertEqual(data[:6], b"\x93NUMPY")
        header = struct.unpack("<H", data[8:10])[0]
        values = array.array("f", data[10 + header :])
        self.assertIn(f"({len(tokens)}, {expected['vocab']})".encode(), data[10 : 10 + header])
        self.assertEqual(len(values), len(raw))
        self.assertLess(max(abs(a - b) for a, b in zip(values, raw)), 1e-4 * expected["max_abs_logit"])
        self.assertIsNone(out["logprobs"][0])
        vocab = expected["vocab"]
        for i in range(1, len(tokens)):
            row = raw[(i - 1) * vocab : i * vocab]
            want = row[tokens[i]] - math.log(sum(map(math.exp, row)))
            self.assertAlmostEqual(out["logprobs"][i], want, delta=1e-3)
        mean = sum(out["logprobs"][1:]) / (len(tokens) - 1)
        self.assertAlmostEqual(out["perplexity"], math.exp(-mean), delta=1e-2)

    def test_a_file_is_scored(self):
        page = FIXTURES / "smollm2" / "page.txt"
        expected = json.loads((FIXTURES / "smollm2" / "expected.json").read_text())["page"]
        out = as_json("score", "--file", page)
        self.assertEqual(out["tokens"], expected["tokens"])
        self.assertAlmostEqual(math.log(out["perplexity"]), expected["mean_nll"], delta=1e-3)


class Tokens(unittest.TestCase):
    def test_round_trip(self):
        text = "Straße, 東京 🗼 and 12345\n"
        out = as_json("tokenize", MODEL, text)
        self.assertEqual(len(out["tokens"]), len(out["pieces"]))
        back = json.loads(ok("detokenize", MODEL, ",".join(map(str, out["tokens"])), "--json"))
        self.assertEqual(back["text"], text)


class Inspect(unittest.TestCase):
    def test_default_model(self):
        out = as_json("inspect")
        self.assertEqual((out["architecture"], out["layers"], out["dim"]), ("llama", 30, 576))
        self.assertEqual(out["parameters"], 134_515_008)
        self.assertEqual(out["state_bytes_per_token"], 30 * 3 * 64 * 2 * 2)
        self.assertEqual(out["formats"]["q4_1"]["tensors"], 210)

    def test_slots(self):
        out = as_json("inspect", FIXTURES / "mamba")
        self.assertEqual(out["state_bytes_per_token"], 0)
        self.assertEqual(out["state_bytes_per_sequence"], 3 * (3 * 64 * 4 + 64 * 8 * 4))


class Program(unittest.TestCase):
    def test_the_default_model(self):
        out = as_json("inspect", "--program", "--batch", 3, "--context", 100)
        ops = out["operations"]
        self.assertEqual((out["list"], out["batch"], out["rows"], out["context"]), ("whole", 3, 1, 100))
        # Embedding, angles; of 30 layers norm, q+k+v, two ropes, store, attend, o, norm, gate+up, gate, down; gather, norm, output.
        self.assertEqual(len(ops), 2 + 30 * 11 + 3)
        qkv = next(op for op in ops if op.get("name") == "q+k+v")
        self.assertEqual((qkv["layer"], qkv["weight"], qkv["format"]), (0, "[960, 576]", "q4_1"))
        self.assertEqual(qkv["flops"], 2 * 3 * 960 * 576)
        self.assertEqual(qkv["weight_bytes"], 960 * 576 * 20 / 32)
        attend = next(op for op in ops if op["op"] == "attend")
        self.assertEqual(attend["flops"], 4 * 3 * 100 * 9 * 64)
        self.assertEqual(attend["state_bytes_read"], 3 * 100 * 2 * 3 * 64 * 2)
        self.assertEqual(sum(op["flops"] for op in ops), out["total"]["flops"])
        inside = [(m["rule"], m["operations"]) for m in ops[2]["marks"]]  # at the first norm
        self.assertEqual(inside, [("norm_linear", 2)])

    def test_alike_layers_are_folded(self):
        text = ok("inspect", "--program")
        self.assertIn("layers 1-29: as layer 0", text)
        self.assertEqual(text.count(" q+k+v "), 1)
        self.assertEqual(ok("inspect", "--program", "--all").count(" q+k+v "), 30)
        hybrid = ok("inspect", FIXTURES / "jamba", "--program")
        for words in ("diag_scan", "tokens×2", "4 × [24, 32]", "2 of 4", "selective_scan 8", "workspace"):
            self.assertIn(words, hybrid)

    def test_few_outputs_take_the_tail(self):
        prompt = as_json("inspect", FIXTURES / "llama_gqa", "--program", "--prompt", 64)
        self.assertEqual(prompt["list"], "tail")
        down = [op for op in prompt["operations"] if op.get("name") == "down"]
        self.assertEqual([op["flops"] for op in down], [2 * rows * 40 * 72 for rows in (64, 1)])
        self.assertIn("outputs, 40", ok("inspect", FIXTURES / "llama_gqa", "--program", "--tail"))
        self.assertEqual(as_json("inspect", FIXTURES / "llama_gqa", "--program", "--tail")["list"], "tail")


class Bench(unittest.TestCase):
    def test_techniques_are_measured_against_their_plain_forms(self):
        rows = as_json("bench", "--techniques", "kv-cache,copy-on-write", "--repeat", 1)
        by_name = {(r["technique"], r["workload"]): r for r in rows}
        self.assertEqual(len(rows), 8 + 2)
        for n in (32, 64, 128, 256):
            plain, kept = (by_name["kv-cache", f"{form}, {n} + {n // 4} tokens"] for form in ("none", "kept"))
            self.assertEqual(plain["computed_tokens"], sum(range(n, n + n // 4)))
            self.assertEqual(kept["computed_tokens"], n + n // 4 - 1)
            self.assertEqual(plain["gain"], 1)
            if n > 32:  # attention's flops: T^3 without the cache, T^2 with it
                self.assertGreater(plain["attention_seconds"], kept["attention_seconds"])
                self.assertAlmostEqual(plain["growth"]["attention_flops"], 3, delta=0.05)
                self.assertAlmostEqual(kept["growth"]["attention_flops"], 2, delta=0.05)
                self.assertGreater(plain["flops"], 4 * kept["flops"])
        for key in ("seconds", "attention_seconds"):  # time itself, over three doublings: 64 and 512 times, 8 and 64 times
            grown = [by_name["kv-cache", f"{form}, 256 + 64 tokens"][key] / by_name["kv-cache", f"{form}, 32 + 8 tokens"][key] for form in ("none", "kept")]
            self.assertGreater(grown[0], grown[1], (key, grown))
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
        by_name = {(r["technique"], r["workload"]): r for r in rows}
        self.assertEqual(list(by_name), [("arrivals", "static"), ("arrivals", "dynamic"), ("arrivals", "continuous"), ("ragged", "padded"),
                                         ("ragged", "ragged"), ("kv-formats", "f32"), ("kv-formats", "bf16"), ("kv-formats", "f16")])
        for plain, better in ((("arrivals", "static"), ("arrivals", "continuous")), (("ragged", "padded"), ("ragged", "ragged"))):
            self.assertGreater(by_name[plain]["computed_tokens"], by_name[better]["computed_tokens"])
        self.assertGreater(by_name["kv-formats", "f32"]["bytes"], by_name["kv-formats", "f16"]["bytes"])

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
            self.assertLess(row["best_seconds"], row["seconds"])  # of two runs, the median is the slower
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
        self.assertGreater(at["decode", "2"] - at["prefill", "1"], 4)  # three more rows of two seconds
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
        self.assertEqual([r["context"] for r in rows[:3]], [255, 255, 256 - 33])  # a token is written behind a prompt, 33 in decode
        self.assertTrue(128 < rows[3]["context"] < 256 - 33, rows[3])  # who is read first writes until all are
        self.assertIn("context of 256 tokens holds the answer too", ok(*args))
        rows = as_json("bench", self.TINY, "--context", 256, "--decode", 200, "--repeat", 1)
        self.assertEqual([r["context"] for r in rows], [255, 256])
        self.assertIn("256 tokens and what is written behind it are 457", rows[1]["error"])
        self.assertNotIn("asked_context", as_json(*args[:3], 64, "--repeat", 1)[1])

    def test_plain_forms_are_measured_too(self):
        shape = ["bench", self.TINY, "--batch", 2, "--context", 16, "--decode", 4, "--repeat", 1]
        kept = as_json(*shape)[1]
        for plain in (["--no-kv-cache"], ["--state", "contiguous"], ["--batching", "static"]):
            row = as_json(*shape, *plain)[1]
            self.assertEqual(row["steps"], 4, plain)
            more = row["flops"] / kept["flops"]
            # 17 to 20 rows instead of one, but in the second of two blocks one goes on behind the state, and through the output layer
            self.assertTrue(9 < more < 20 if plain == ["--no-kv-cache"] else more == 1, (plain, more))

    def test_runs_until_they_agree_or_the_time_is_spent(self):
        args = ["bench", self.TINY, "--context", 16, "--decode", 2]
        for row in as_json(*args, "--spread", 1, "--budget", "30s"):
            self.assertTrue(row["repeat"] >= 3 and row["spread"] <= 1, row)
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


class Analyze(unittest.TestCase):
    CLASSIC = ["analyze", "--config", "llama-2-13b", "--hardware", "h100", "--batch", "1,16,64,256", "--context", "1024"]

    def test_the_classic_example(self):
        out = as_json(*self.CLASSIC)
        self.assertEqual((out["model"], out["hardware"], out["parameters"]), ("llama-2-13b", "h100", 13_015_449_600))
        self.assertEqual([round(r["memory_bytes"] / 1e9, 2) for r in out["rows"]], [26.87, 39.45, 79.72, 240.78])
        self.assertEqual([round(r["latency_s"] * 1e3, 2) for r in out["rows"]], [8.02, 11.78, 23.80, 71.87])
        self.assertEqual([round(r["tokens_per_s"]) for r in out["rows"]], [125, 1359, 2689, 3562])
        self.assertEqual([r["fits"] for r in out["rows"]], [True, True, True, False])
        grouped = as_json(*self.CLASSIC, "--kv-heads", 8)["rows"]
        self.assertEqual([round(r["tokens_per_s"]) for r in grouped[2:]], [6417, 13068])
        self.assertIn("26.87 GB", ok(*self.CLASSIC))

    def test_the_default_model_on_this_machine(self):
        out = as_json("analyze")
        self.assertEqual(out["hardware"], "local")
        self.assertGreater(out["chip"]["bandwidth"], 1e8)
        self.assertAlmostEqual(out["ratio"], out["chip"]["quantized_flops"] / out["chip"]["bandwidth"])  # of its 4-bit weights
        self.assertEqual((out["chip"]["ratios"]["quantized"], out["chip"]["ratios"]["bf16"]), (out["ratio"], out["chip"]["ratio"]))
        self.assertEqual(out["state"]["bytes_per_token"], as_json("inspect")["state_bytes_per_token"])
        self.assertIn("What fits", ok("analyze"))

    def test_state_is_what_inspect_says_of_every_fixture(self):
        for folder in sorted(FIXTURES.iterdir()):
            model = folder / "model.gguf" if (folder / "model.gguf").exists() else folder
            if folder.name in ("smollm2", "gemma3n"):  # no model, an unknown family
                continue
            inspected, analysed = as_json("inspect", model), as_json("analyze", model, "--hardware", "h100")["state"]
            self.assertEqual(analysed["bytes_per_token"], inspected["state_bytes_per_token"], folder.name)
            self.assertEqual(analysed["bytes_per_sequence"], inspected["state_bytes_per_sequence"], folder.name)

    def test_a_bare_configuration_will_do(self):
        out = as_json("analyze", FIXTURES / "jamba" / "config.json", "--hardware", "a100")
        self.assertEqual(out["architecture"], "jamba")
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(FIXTURES / "qwen3" / "config.json", folder)
            self.assertEqual(as_json("analyze", folder, "--hardware", "a100")["architecture"], "qwen3")
            config = pathlib.Path(folder) / "config.json"
            for chip, kept in (("a100", "bf16"), ("local", "f16")):  # as the engine keeps them there
                for words in ([folder], [config], ["--config", config], ["--config", "llama-2-7b"]):
                    self.assertEqual(as_json("analyze", *words, "--hardware", chip)["kv_format"], kept, (chip, words))

    def test_a_model_without_keys_has_no_format_of_them(self):
        recurrent = ["analyze", "--config", "mamba-2.8b", "--hardware", "h100"]
        self.assertIsNone(as_json(*recurrent)["kv_format"])
        self.assertNotIn("keys and values in", ok(*recurrent))
        self.assertNotIn("the model was made for", ok(*recurrent))  # nobody says for how long a context

    def test_what_ifs(self):
        plain = as_json(*self.CLASSIC)["rows"][0]
        small = as_json(*self.CLASSIC, "--weight-format", "int4", "--kv-format", "fp8", "--tp", 4, "--replicas", 8)["rows"][0]
        self.assertLess(small["memory_bytes"], plain["memory_bytes"] / 3)
        self.assertGreater(small["tokens_per_s"], 8 * 4 * 3 * plain["tokens_per_s"])
        self.assertLess(as_json(*self.CLASSIC, "--window", 256, "--kv-share", 2)["state"]["bytes_per_token"], 819200)
        experts = as_json(*self.CLASSIC, "--experts", "8:2")
        self.assertGreater(experts["parameters"], 2 * experts["active_parameters"])
        drafted = as_json(*self.CLASSIC, "--draft", "smollm2-135m", "--acceptance", 0.7, "--lookahead", 4)["rows"][0]
        self.assertGreater(drafted["draft_speedup"], 1.5)
        self.assertEqual(len(as_json("analyze", "--config", "llama-2-7b", "--hardware", "h100", "--draft", "llama-2-13b")["warnings"]), 1)
        self.assertGreater(as_json(*self.CLASSIC, "--demand", "100e9")["limits"][0]["chips_for_demand"], 100)
        self.assertIsNone(as_json("analyze", "--config", "llama-2-70b", "--hardware", "h100")["limits"][0]["price_per_million_tokens"])
        self.assertIn("e4m3", ok("analyze", "--formats"))

    def test_a_page_of_its_own(self):
        with tempfile.TemporaryDirectory() as folder:
            page = pathlib.Path(folder) / "page.html"
            ok(*self.CLASSIC, "--html", page, "--svg", folder)
            root = xml.etree.ElementTree.fromstring(page.read_text().removeprefix("<!DOCTYPE html>"))
            self.assertEqual(len(root.findall(".//{http://www.w3.org/2000/svg}svg")), 3)
            for name in ("roofline", "throughput", "memory"):
                xml.etree.ElementTree.parse(pathlib.Path(folder) / f"{name}.svg")


class Chat(unittest.TestCase):
    def test_piped_conversation_remembers(self):
        out = ok("chat", "--temperature", 0, "--max-tokens", 24, stdin="What is the capital of France?\nWhat did I just ask you about?\n")
        self.assertTrue(out.startswith("The capital of France is Paris.\n"), out)
        self.assertGreater(len(out.splitlines()), 1)

    def test_interrupt_stops_the_answer_and_not_the_program(self):
        try:
            pid, terminal = pty.fork()
        except OSError as e:
            self.skipTest(f"no terminal can be had here: {e}")
        if pid == 0:
            os.execv(PROGRAM, [PROGRAM, "chat", "--temperature", "0", "--ignore-eos", "--max-tokens", "4000"])
        seen = b""

        def read_until(text, seconds=60):
            nonlocal seen
            end = time.time() + seconds
            while text not in seen:
                self.assertLess(time.time(), end, seen)
                seen += os.read(terminal, 4096)
            seen = seen[seen.index(text) + len(text) :]

        read_until(b"> ")
        os.write(terminal, b"Count to one thousand.\n")
        read_until(b"\n")
        time.sleep(1)
        os.write(terminal, b"\x03")
        read_until(b"> ")
        os.write(terminal, b"/exit\n")
        try:
            while os.read(terminal, 4096):
                pass
        except OSError:  # the other end is closed
            pass
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 0)
        os.close(terminal)


class Errors(unittest.TestCase):
    def fails(self, args, *words, status=1):
        result = run(*args)
        self.assertEqual(result.returncode, status, result.stderr)
        if status == 1:
            self.assertEqual(len(result.stderr.strip().splitlines()), 1, result.stderr)
        for word in words:
            self.assertIn(str(word), result.stderr)

    def test_wrong_command_lines_exit_2(self):
        self.fails(["generate", "--no-such-option"], "--no-such-option", status=2)
        self.fails([], status=2)
        self.fails(["fly"], "fly", status=2)
        self.fails(["generate", "--threads", "many"], "many", status=2)
        self.fails(["generate", "--memory", "abc"], "abc", status=2)
        self.fails(["generate", "--swap", "2X"], "2X", status=2)
        self.fails(["generate", "--page-tokens", 20], "20", status=2)
        self.fails(["generate", "--isa", "sse9"], "sse9", status=2)
        for option, value in (("--batch", 0), ("--batch", "1,x"), ("--context", -5), ("--spread", 2), ("--budget", "soon"), ("--budget", "0s"),
                              ("--repeat", 0), ("--prompt-tokens", "5-3"), ("--prompt-tokens", "lognormal:8"), ("--max-tokens", "few"),
                              ("--load-file", "/no/such/file"), ("--techniques", "magic"), ("--rate", -1)):
            self.fails(["bench", option, value], option, status=2)
        self.fails(["bench", "--context", 16, "--prefill", 16], "--prefill", status=2)
        self.fails(["bench", "--repeat", 2, "--budget", "3s"], "--repeat", status=2)
        self.fails(["bench", "--load", "--batch", 2], "--load", status=2)
        self.fails(["bench", "--url", "http://127.0.0.1:1", "--explain"], "--url", status=2)
        self.fails(["bench", "--ttft-deadline", 1], "--url", status=2)
        for option in ("--streams", "--rate", "--requests", "--prompt-tokens", "--seed"):
            self.fails(["bench", option, 2], option, "--load")
        self.fails(["bench", "--html", "page.html"], "--html", "--url")
        self.fails(["bench", "--url", "http://127.0.0.1:1", "--threads", 2], "--threads", "--url")
        self.fails(["bench", "--label", "x"], "--url", status=2)
        self.fails(["bench", "--techniques", "batching", "--batch", 2], "--batch", status=2)
        self.fails(["bench", "--load", "--rate", 1, "--streams", 2], "--rate", "--streams", status=2)
        self.fails(["bench", "--batch", "4,64", "--max-seqs", 16], "--batch 64", "--max-seqs 16")
        self.fails(["bench", "--load", "--shared-prefix", 64, "--prompt-tokens", "8-16"], "--shared-prefix 64", "8-16")
        for command in ("bench", "analyze"):
            for gap in ("1,,3", ",1", "1,"):
                self.fails([command, "--batch", gap], f"--batch {gap}", status=2)
        self.fails(["analyze", "--batch", ""], '--batch ""', "empty entry", status=2)
        self.fails(["bench", "--batch=1,,3"], "--batch 1,,3", status=2)
        self.fails(["analyze", "--demand", 0], "--demand", status=2)
        self.fails(["analyze", "--lookahead", 3], "--draft", status=2)
        self.fails(["analyze", "--link", "pcie5"], "--tp", status=2)

    def test_missing_and_broken_files(self):
        self.fails(["generate", "/no/such/model", "-p", "x"], "/no/such/model")
        with tempfile.TemporaryDirectory() as folder:
            broken = pathlib.Path(folder) / "broken.gguf"
            broken.write_bytes(b"GGUF" + b"\xff" * 60)
            self.fails(["inspect", broken], "broken.gguf")
            broken.write_bytes((FIXTURES / "gguf_q4_0" / "model.gguf").read_bytes()[:20000])
            self.fails(["inspect", broken], "broken.gguf")

    def test_unknown_architecture_and_misshapen_tensors(self):
        with tempfile.TemporaryDirectory() as folder:
            copy = pathlib.Path(folder) / "m"
            shutil.copytree(FIXTURES / "qwen3", copy)
            config = json.loads((copy / "config.json").read_text())

            def with_config(**changes):
                (copy / "config.json").write_text(json.dumps(config | changes))
                return ["generate", copy, "--tokens", "1", "--max-tokens", "1"]

            self.fails(with_config(model_type="abacus"), "abacus", "llama")
            self.fails(with_config(intermediate_size=80), "gate_proj", "[72, 32]", "[80, 32]")
            self.fails(with_config(num_hidden_layers=9), "model.layers.2.")
            self.fails(with_config(hidden_size="wide"), "hidden_size", "wide")
            self.fails(with_config(num_hidden_layers=1000000000), "num_hidden_layers", 1000000000)

    def test_impossible_requests(self):
        tiny = FIXTURES / "llama_gqa"
        self.fails(["generate", tiny, "-p", "text"], "tokenizer")
        self.fails(["generate", tiny, "--tokens", "1,999"], 999, 131)
        self.fails(["generate", tiny, "--tokens", ",".join(["1"] * 300)], 300, 256)
        self.fails(["generate", "-p", "x", "--temperature", "-1"], "temperature")
        self.fails(["generate", "-p", "x", "--top-p", "2"], "top_p")
        self.fails(["generate", "-p", "x", "--logit-bias", "seven=1"], "seven=1")
        self.fails(["generate", "-p", "x", "--memory", "lots"], "lots", status=2)
        self.fails(["detokenize", MODEL, "99999999"], 99999999)
        self.fails(["bench", tiny, "--load", "--prompt-tokens", 300], 300, 256)

    def test_impossible_analyses(self):
        classic = ["analyze", "--config", "llama-2-13b", "--hardware"]
        self.fails([*classic, "abacus"], "abacus", "h100")
        self.fails(["analyze", "--config", "llama-99", "--hardware", "h100"], "llama-99", "llama-2-13b")
        self.fails(["analyze", "llama-99", "--hardware", "h100"], "llama-99", "llama-2-13b")
        self.fails([*classic, "h100", "--kv-heads", 7], 40, 7)
        self.fails([*classic, "h100", "--batch", 0], "batch of 0")
        self.fails([*classic, "h100", "--batch", 2_000_000_000], 2_000_000_000, 1 << 24)
        self.fails([*classic, "h100", "--tp", 3], "40 query heads", "3 chips", "1, 2, 4, 5, 8")
        self.fails([*classic, "h100", "--weight-format", "int3"], "int3", "int4")
        self.fails([*classic, "h100", "--experts", "many"], "many", "8:2")
        self.fails([*classic, "local", "--tp", 2], "link")
        self.fails([*classic, "h100", "--kv-share", 41], 41, 40)
        self.fails([*classic, "h100", "--window", 64, "--global-every", 41], 41, 40)
        for option, limit in (("--price", "1e9"), ("--demand", "1e18"), ("--deadline", "1e9"), ("--user-speed", "1e9")):
            for value in ("inf", "1e+30"):
                self.fails([*classic, "h100", option, value], value, limit)
        self.fails([*classic, "h100", "--probe"], "--probe", "h100")
        self.fails([*classic, "h100", "--threads", 2], "--threads", "h100")
        self.fails(["analyze", "--config", "mamba-2.8b", "--hardware", "h100", "--experts", "8:2"], "8 experts", "64 layers")
        self.fails(["analyze", "--config", "mamba-2.8b", "--hardware", "h100", "--kv-heads", 1], "keys and values")
        self.fails(["analyze", "--config", "mamba-2.8b", "--hardware", "h100", "--kv-format", "fp8"], "mamba-2.8b", "keys and values")
        self.fails([*classic, "h100", "--html", "/no/such/folder/page.html"], "/no/such/folder/page.html")


if __name__ == "__main__":
    unittest.main()
