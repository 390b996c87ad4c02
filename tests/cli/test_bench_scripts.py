"""The programs of bench/ on a machine that lacks something, or is busy: one sentence. Standard library only, nothing is fetched."""

import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

BENCH = pathlib.Path(__file__).parent.parent.parent / "bench"
sys.path.insert(0, str(BENCH))
import check_probe  # noqa: E402


def run(*words, **environment):
    return subprocess.run([sys.executable, *map(str, words)], capture_output=True, text=True, timeout=300, env=os.environ | environment)


class Scripts(unittest.TestCase):
    def says(self, done, *words):
        self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (1, "", 1), done.stderr)
        for word in words:
            self.assertIn(str(word), done.stderr)

    def test_what_lacks_is_named_with_what_to_do(self):
        with tempfile.TemporaryDirectory() as cache:
            for script in ("llama_server.py", "llama_cpp.py"):
                done = run(BENCH / "peers" / script, "--millrace", __file__, XDG_CACHE_HOME=cache)
                self.says(done, pathlib.Path(cache) / "millrace" / "models", "./quickstart")
            self.assertEqual(list(pathlib.Path(cache).iterdir()), [])
        self.says(run(BENCH / "check_probe.py", "/no/such/program"), "/no/such/program", "./quickstart")
        with tempfile.TemporaryDirectory() as empty:
            self.says(run(BENCH / "check_probe.py", __file__, PATH=empty), "gcc")

    def test_a_busy_machine_is_called_busy(self):
        self.assertEqual(check_probe.busy_text(0.05), "")
        self.assertIn("34 % of the processors", check_probe.busy_text(0.34))
        others = check_probe.Others()
        spinning = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        time.sleep(1)
        share = others.share()
        spinning.kill()
        spinning.wait()
        self.assertGreater(share, 0.2 / os.cpu_count())  # a core, unless it has to share it with many
        mine, begin = sum(os.times()[:4]), time.monotonic()
        others = check_probe.Others()
        while sum(os.times()[:4]) < mine + 1:  # what this program does itself is nobody else's work
            pass
        all_but_mine = 1 - 1 / (os.cpu_count() * (time.monotonic() - begin))
        self.assertLessEqual(others.share(), all_but_mine + 0.05)


if __name__ == "__main__":
    unittest.main()
