"""millrace run with models that are not here, against a hub on this machine.

Run by ctest with the program's path in MILLRACE, by a Python that has huggingface_hub.
"""

import json
import unittest

from hub_case import DIRECTORY, Case, noise

LETTERS = "Ġ" + "".join(map(chr, range(33, 127)))  # as byte-level BPE writes them
TOKENIZER = json.dumps({"model": {"type": "BPE", "vocab": {c: i for i, c in enumerate(LETTERS)}, "merges": []}, "added_tokens": [],
                        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False}, "decoder": {"type": "ByteLevel"}}).encode()


class Run(Case):
    def test_what_is_not_here_is_pulled_and_asked(self):
        self.hub.add("owner/Tiny", {**DIRECTORY, "tokenizer.json": TOKENIZER})
        ask = ["run", "owner/Tiny", "Why", "not?", "--temp", "0", "--max-tokens", "5", "--ignore-eos", "--logit-bias", "40=100"]
        first = self.run_it(*ask)
        self.assertEqual((first.returncode, first.stdout), (0, LETTERS[40] * 5 + "\n"), first.stderr)
        self.assertIn("owner/Tiny is not on this machine yet: pulling it", first.stderr)
        self.hub.requests.clear()
        second = self.run_it(*ask)
        self.assertEqual((second.returncode, second.stdout), (0, first.stdout))
        self.assertFalse(self.hub.requests)
        self.assertNotIn("pulling", second.stderr)

    def test_without_a_name_the_default_model_is_pulled(self):
        name = "HuggingFaceTB/SmolLM2-135M-Instruct"
        self.hub.add(name, {**DIRECTORY, "tokenizer.json": TOKENIZER})
        self.assertIn(f"`millrace pull {name}`", self.refused("generate", "-p", "Hi"))
        self.assertIn("millrace run", self.ok("doctor"))
        self.assertFalse(self.hub.requests)
        first = self.run_it("run", "-p", "Why not?", "--max-tokens", "5", "--ignore-eos", "--logit-bias", "40=100")
        self.assertEqual((first.returncode, first.stdout), (0, LETTERS[40] * 5 + "\n"), first.stderr)
        self.assertIn(f"{name} is not on this machine yet: pulling it", first.stderr)
        self.hub.requests.clear()
        self.ok("generate", "-p", "Hi", "--max-tokens", "1")
        self.assertNotIn("default model", self.ok("doctor"))
        self.assertFalse(self.hub.requests)

    def test_serve_pulls_what_is_not_here(self):
        self.hub.add("owner/Tiny", {**DIRECTORY, "tokenizer.json": TOKENIZER})
        server = self.start("serve", "owner/Tiny", "--port", "0")
        self.addCleanup(server.communicate)
        self.addCleanup(server.terminate)
        said = []
        for line in server.stderr:
            said.append(line)
            if "/v1" in line:
                break
        self.assertIn("owner/Tiny is not on this machine yet: pulling it\n", said)
        self.assertRegex(said[-1], "^owner/Tiny at http://127.0.0.1:[0-9]+/v1$")

    def test_paths_that_lead_nowhere_stay_on_this_machine(self):
        (self.home / "weights").mkdir()
        for name in ("models/llama", "weights/llama", "llama/llama.gguf", "./owner/Tiny", "/owner/Tiny", "../Tiny", "nothing.gguf"):
            self.assertIn(f"there is no file or folder '{name}'", self.refused("run", name, "Hi"))
        self.assertIn("there is no model 'nothing'", self.refused("run", "nothing", "Hi"))
        self.assertIn("a prompt for the default one goes after -p", self.refused("run", "Why is the sky blue?"))
        self.assertFalse(self.hub.requests)
        self.hub.add("models/llama", {**DIRECTORY, "tokenizer.json": TOKENIZER})
        self.ok("run", "hf.co/models/llama", "Hi", "--max-tokens", "1")

    def test_which_one_is_asked_before_anything_is_pulled(self):
        self.hub.add("a/b", {"m-Q8_0.gguf": noise(2000, 1), "m-Q4_0.gguf": noise(1200, 2)})
        self.assertIn("choose one: a/b:Q4_0 (1.20 kB), a/b:Q8_0 (2.00 kB)", self.refused("run", "a/b", "Hi"))
        self.assertFalse(self.asked("cdn"))
        self.assertIn("look at the spelling", self.refused("run", "a/c", "Hi"))


if __name__ == "__main__":
    unittest.main()
