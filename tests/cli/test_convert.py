"""millrace convert and --quantize as a user meets them. Standard library only; run by ctest with the program's path in MILLRACE."""

import json
import os
import pathlib
import resource
import signal
import subprocess
import tempfile
import unittest

from program import FIXTURES, PROGRAM, as_json, ok, run

LLAMA = FIXTURES / "llama_gqa"
TOKENS = ["--tokens", "1,5,9,33,7", "--max-tokens", "8", "--temperature", "0", "--ignore-eos"]


class Convert(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = pathlib.Path(self.temporary.name)
        self.addCleanup(self.temporary.cleanup)

    def left(self):
        return sorted(p.name for p in self.folder.iterdir())

    def refuses(self, *args, status=1, **options):
        before = self.left()
        result = run("convert", *args, **options)
        self.assertEqual(result.returncode, status, result.stderr)
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        self.assertEqual(self.left(), before)
        return result.stderr

    def test_both_containers_answer_alike(self):
        answer = as_json("generate", LLAMA, *TOKENS)["choices"]
        file, back = self.folder / "model.gguf", self.folder / "back"
        ok("convert", LLAMA, file)
        ok("convert", file, back)
        self.assertEqual(as_json("generate", file, *TOKENS)["choices"], answer)
        self.assertEqual(as_json("generate", back, *TOKENS)["choices"], answer)
        self.assertEqual(self.left(), ["back", "model.gguf"])

    def test_quantizing_while_loading_and_before_are_the_same(self):
        file = self.folder / "model.gguf"
        ok("convert", LLAMA, file, "--format", "q8_0")
        loaded = as_json("generate", LLAMA, "--quantize", "q8_0", *TOKENS)["choices"]
        self.assertEqual(as_json("generate", file, *TOKENS)["choices"], loaded)
        formats = json.loads(ok("inspect", file, "--json"))["formats"]
        self.assertIn("q8_0", formats)

    def test_shards(self):
        ok("convert", LLAMA, self.folder / "m.gguf", "--shard-size", "40000")
        parts = self.left()
        self.assertGreater(len(parts), 2)
        self.assertEqual(parts[0], f"m-00001-of-{len(parts):05}.gguf")
        answer = as_json("generate", LLAMA, *TOKENS)["choices"]
        self.assertEqual(as_json("generate", self.folder / parts[0], *TOKENS)["choices"], answer)

    def test_what_is_there_is_replaced_only_with_force(self):
        file = self.folder / "model.gguf"
        file.write_text("mine")
        self.assertIn("--force", self.refuses(LLAMA, file))
        self.assertEqual(file.read_text(), "mine")
        ok("convert", LLAMA, file, "--force")
        self.assertGreater(file.stat().st_size, 1000)
        self.assertIn("itself", self.refuses(file, file, "--force"))

    def test_unknown_formats_list_what_there_is(self):
        for message in (self.refuses(LLAMA, self.folder / "x.gguf", "--format", "q9_9"), run("generate", LLAMA, "--quantize", "q9_9", *TOKENS).stderr):
            for word in ("q9_9", "q4_k_m", "q6_k", "mxfp4"):
                self.assertIn(word, message)

    def test_quantizing_twice_needs_to_be_said(self):
        quantized = FIXTURES / "gguf_q4_1" / "model.gguf"
        self.assertIn("--requantize", self.refuses(quantized, self.folder / "x.gguf", "--format", "q4_0"))
        result = run("generate", quantized, "--quantize", "q8_0", *TOKENS)
        self.assertEqual(result.returncode, 1)
        self.assertIn("--requantize", result.stderr)
        ok("generate", quantized, "--quantize", "q8_0", "--requantize", *TOKENS)

    def test_a_disk_that_takes_no_more(self):
        def no_more():  # the write fails as it does on a full disk, with another reason
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (30000, 30000))

        for out in ("x.gguf", "x"):
            result = subprocess.run([PROGRAM, "convert", LLAMA, self.folder / out], preexec_fn=no_more, capture_output=True, text=True)
            self.assertEqual(result.returncode, 1)
            self.assertIn("cannot write", result.stderr)
            self.assertEqual(result.stderr.count("\n"), 1)
            self.assertEqual(self.left(), [])

    @unittest.skipIf(os.getuid() == 0, "root may write anywhere")
    def test_missing_permission(self):
        self.folder.chmod(0o500)
        self.assertIn("cannot write", self.refuses(LLAMA, self.folder / "x.gguf"))
        self.folder.chmod(0o700)


if __name__ == "__main__":
    unittest.main()
