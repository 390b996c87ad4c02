"""`millrace analyze` as a user runs it. Standard library only.

Run by ctest with the program's path in MILLRACE; the default model must be in the cache folder, as ./test puts it there.
"""

import pathlib
import shutil
import tempfile
import unittest
import xml.etree.ElementTree

from program import FIXTURES, as_json, ok


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
            if folder.name == "smollm2":  # no model
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


if __name__ == "__main__":
    unittest.main()
