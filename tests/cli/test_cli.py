"""The program as a user sees it: commands, exit status, one-sentence errors. Standard library only.

Run by ctest with the program's path in MILLRACE; the default model must be in the cache folder, as ./test puts it there.
"""

import array
import json
import math
import os
import pathlib
import shutil
import struct
import subprocess
import tempfile
import time
import unittest

from program import FIXTURES, MODEL, PROGRAM, as_json, ok, run

PARIS = ["generate", "--chat", "-p", "What is the capital of France?", "--temperature", "0"]


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

    def test_texts_longer_than_the_context(self):
        tiny, tokens = FIXTURES / "llama_gqa", [(7 * i) % 130 for i in range(600)]  # its context: 256
        ids = ",".join(map(str, tokens))
        out = as_json("score", tiny, "--tokens", ids)
        self.assertEqual((len(out["logprobs"]), out["logprobs"][0]), (600, None))
        # Windows of 255 tokens, 127 apart: a token's window is that which first holds it.
        first = as_json("score", tiny, "--tokens", ",".join(map(str, tokens[:255])))["logprobs"]
        self.assertEqual(out["logprobs"][:255], first)
        second = as_json("score", tiny, "--tokens", ",".join(map(str, tokens[127:382])))["logprobs"]
        self.assertEqual(out["logprobs"][255:382], second[128:])
        mean = sum(out["logprobs"][1:]) / 599
        self.assertAlmostEqual(out["perplexity"], math.exp(-mean), delta=1e-6 * out["perplexity"])
        self.assertRegex(ok("score", tiny, "--tokens", ids, "--summary"), r"^600 tokens in 4 windows, log-probability -[\d.]+ .*, perplexity [\d.]+\n$")
        with tempfile.TemporaryDirectory() as folder:
            npy = pathlib.Path(folder) / "logits.npy"
            ok("score", tiny, "--tokens", ids, "--stride", 200, "--logits", npy, "--summary")
            data = npy.read_bytes()
            header = struct.unpack("<H", data[8:10])[0]
            self.assertIn(b"(600, 131)", data[10 : 10 + header])
            self.assertEqual(len(data) - 10 - header, 600 * 131 * 4)

    def test_a_single_token_has_no_perplexity(self):
        text = ok("score", FIXTURES / "llama_gqa", "--tokens", "5")
        self.assertTrue(text.endswith("1 token: nothing predicts the first one, so there is no perplexity\n"), text)
        self.assertIsNone(as_json("score", FIXTURES / "llama_gqa", "--tokens", "5")["perplexity"])

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
        out = as_json("inspect", FIXTURES / "mamba", "--state-dtype", "bf16")
        self.assertEqual(out["state_bytes_per_sequence"], 3 * (3 * 64 * 4 + 64 * 8 * 2))

    def test_formats_of_keys_and_values(self):
        for name, row in (("f32", 256), ("fp8", 64), ("fp8_e5m2", 64), ("int8", 64 + 2), ("int4", 32 + 2)):  # bytes of a head
            token = (3 * 2 * row + 7) // 8 * 8
            self.assertEqual(as_json("inspect", "--kv-dtype", name)["state_bytes_per_token"], 30 * token, name)
            self.assertEqual(as_json("analyze", "--kv-dtype", name, "--hardware", "h100")["state"]["bytes_per_token"], 30 * token, name)


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


class Chat(unittest.TestCase):
    def test_piped_conversation_remembers(self):
        out = ok("chat", "--temperature", 0, "--max-tokens", 24, stdin="What is the capital of France?\nWhat did I just ask you about?\n")
        self.assertTrue(out.startswith("The capital of France is Paris.\n"), out)
        self.assertGreater(len(out.splitlines()), 1)

    def test_piped_commands_and_several_lines(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "talk.json"
            text = f'/system Be brief.\n"""What is the capital\nof France?"""\n/save {file}\n'
            ok("chat", "--temperature", 0, "--max-tokens", 24, stdin=text)
            messages = json.loads(file.read_text())["messages"]
            self.assertEqual([m["content"] for m in messages[:2]], ["Be brief.", "What is the capital\nof France?"])
        result = run("chat", "--max-tokens", 2, stdin="/hlep\nHi\n")
        self.assertEqual(result.returncode, 1)  # the rest is answered, but something was wrong
        self.assertIn("millrace: there is no command '/hlep': did you mean '/help'?", result.stderr)
        self.assertTrue(result.stdout.strip())


class Pipes(unittest.TestCase):
    def test_what_is_piped_comes_before_the_prompt(self):
        plain = as_json("generate", "-p", "The capital of France is\n\nParis", "--max-tokens", 1)["prompt_tokens"]
        for piped in ("The capital of France is", "The capital of France is\n"):
            out = ok("generate", "-p", "Paris", "--max-tokens", 1, "--json", stdin=piped)
            self.assertEqual(json.loads(out)["prompt_tokens"], plain)
        alone = json.loads(ok("generate", "--max-tokens", 1, "--json", stdin="Hello there"))["prompt_tokens"]
        self.assertEqual(alone, as_json("generate", "-p", "Hello there", "--max-tokens", 1)["prompt_tokens"])

    def test_run_is_what_ollamas_users_type(self):
        self.assertEqual(ok("run", MODEL, "What", "is the capital of France?", "--temperature", 0), "The capital of France is Paris.\n")
        self.assertEqual(ok("run", MODEL, "--temp", 0, stdin="What is the capital of France?"), "The capital of France is Paris.\n")


class GenerationConfig(unittest.TestCase):
    def test_gives_the_defaults_and_flags_go_before_it(self):
        with tempfile.TemporaryDirectory() as folder:
            copy = pathlib.Path(folder) / "m"
            shutil.copytree(FIXTURES / "qwen3", copy)
            ask = ["generate", copy, "--tokens", "1,2,3", "--max-tokens", 6, "--ignore-eos", "--seed", 1]
            greedy, drawn = (as_json(*ask, "--temperature", t)["choices"] for t in (0, 50))
            self.assertNotEqual(greedy, drawn)
            (copy / "generation_config.json").write_text('{"temperature": 50}')
            self.assertEqual(as_json(*ask)["choices"], drawn)
            self.assertEqual(as_json(*ask, "--temperature", 0)["choices"], greedy)
            (copy / "generation_config.json").write_text('{"do_sample": false}')
            self.assertEqual(as_json(*ask)["choices"], greedy)
            (copy / "generation_config.json").write_text('{"top_p": 7}')
            self.assertIn("generation_config.json: top_p", run(*ask).stderr)


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
        self.fails(["generate", "--kv-dtype", "int3"], "int3", "int4", "fp8_e4m3", status=2)
        self.fails(["serve", "--state-dtype", "int8"], "int8", "bf16", status=2)
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

    def test_mistakes_begin_like_other_errors_and_name_the_right_word(self):
        for args, words in (
            (["generat"], ("there is no command 'generat'", "'generate'")),
            (["generate", "--temprature", "1"], ("'--temprature'", "'--temperature'", "millrace generate --help")),
            (["generate", "-ngl", "99"], ("-ngl", "--device cuda")),
            (["chat", "-n", "5"], ("-n", "--max-tokens")),
            (["chat", "--max-seqs", "5"], ("--max-seqs", "no effect", "one sequence")),
            (["generate", "-p", "x", "--system", "y"], ("--system", "--chat")),
            (["generate", "-n", "500"], ("500", "--max-tokens")),
            (["generate", MODEL, "Hello"], ("'Hello'",)),
        ):
            result = run(*args)
            self.assertEqual((result.returncode, result.stdout), (2, ""), args)
            self.assertRegex(result.stderr, r"^millrace: [^\n]+\n$")
            for word in words:
                self.assertIn(word, result.stderr)

    def test_help_is_short_and_help_all_is_not(self):
        for command in ("generate", "chat", "run", "serve", "score", "bench"):
            short, long = ok(command, "--help"), ok(command, "--help-all")
            flags = [line for line in short.splitlines() if line.startswith("  -")]
            self.assertLessEqual(len(flags), 12, command)
            self.assertGreater(len([line for line in long.splitlines() if line.startswith("  -")]), 2 * len(flags) - 2, command)
            self.assertIn("--help-all", short)
            self.assertTrue(all(len(line) <= 80 for line in (short + long).splitlines()), command)

    def test_help_names_help_all_only_where_it_says_more(self):
        self.assertNotIn("--help-all", ok("list", "--help"))
        self.assertEqual(ok("list", "--help"), ok("list", "--help-all"))

    def test_familiar_flags_work(self):
        ours = as_json("generate", "-p", "Once", "--temperature", 0.9, "--max-tokens", 4, "--seed", 3, "--max-context", 64, "--top-k", 9)
        theirs = as_json("generate", "-m", MODEL, "-p", "Once", "--temp", 0.9, "--n-predict", 4, "-s", 3, "-c", 64, "--top_k=9", "-t", 1)
        self.assertEqual(ours["choices"], theirs["choices"])

    def test_what_does_not_run_says_what_does(self):
        with tempfile.TemporaryDirectory() as folder:
            copy = pathlib.Path(folder) / "m"
            shutil.copytree(FIXTURES / "qwen3", copy)
            config = json.loads((copy / "config.json").read_text())
            config["quantization_config"] = {"quant_method": "exl3", "bits": 4}
            (copy / "config.json").write_text(json.dumps(config))
            self.assertIn("quantized (EXL3), which does not run here", ok("inspect", copy))
            self.assertEqual(as_json("inspect", copy)["quantization"], "EXL3, 4 bits")
            self.fails(["generate", copy, "--tokens", "1"], "EXL3", "AWQ", "GGUF")
            self.assertIn("awq4 g32", ok("inspect", FIXTURES / "quant_awq", "--program"))
            self.assertIn("AWQ, 4 bits, groups of 32", ok("inspect", FIXTURES / "quant_awq"))
            one = pathlib.Path(folder) / "one"
            one.mkdir()
            shutil.copy(FIXTURES / "gguf_q4_1" / "model.gguf", one / "anything.gguf")
            self.assertEqual(as_json("inspect", one)["formats"], as_json("inspect", FIXTURES / "gguf_q4_1" / "model.gguf")["formats"])

    def test_output_that_nobody_takes_is_an_error(self):
        with open("/dev/full", "w") as full:
            done = subprocess.run([PROGRAM, "tokenize", MODEL, "a"], stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE, text=True, timeout=300)
        self.assertEqual(done.returncode, 1)
        self.assertIn("not all of the output could be written", done.stderr)

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
