"""What is installed beside the program: completions that bash takes, a manual page that man reads, a unit and a dashboard that name
what there is."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

MILLRACE = os.environ["MILLRACE"]
MODULE = list(filter(None, [os.environ.get("MILLRACE_MODULE")]))  # none: the build did without
ROOT = pathlib.Path(__file__).resolve().parents[2]


def run(*words, **options):
    return subprocess.run(words, capture_output=True, text=True, **{"timeout": 600, **options})


def commands():
    """The commands that --help lists."""
    text = run(MILLRACE, "--help").stdout
    return re.findall(r"^  ([a-z]+) ", text[text.index("Commands:"):], re.M)


def completed(*words):
    """What bash offers for the last of these words."""
    script = run(MILLRACE, "completions", "bash").stdout
    ask = f'{script}\nCOMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _millrace; printf "%s\\n" "${{COMPREPLY[@]}}"'
    return run("bash", "-c", ask, "bash", *words).stdout.split()


class Completions(unittest.TestCase):
    def test_every_command_is_offered(self):
        self.assertIn("serve", commands())
        self.assertTrue(set(commands()) <= set(completed("millrace", "")))
        self.assertEqual(completed("millrace", "gen"), ["generate"])

    def test_flags_of_a_command(self):
        self.assertIn("--port", completed("millrace", "serve", "--po"))
        self.assertEqual(completed("millrace", "tokenize", "--port"), [])
        self.assertEqual(completed("millrace", "run", "--sys"), ["--system"])
        self.assertEqual(completed("millrace", "chat", "--max-seqs"), [])  # it has no effect there

    def test_files_elsewhere(self):
        with tempfile.TemporaryDirectory() as folder:
            model = pathlib.Path(folder, "model.gguf")
            model.touch()
            self.assertEqual(completed("millrace", "inspect", folder + "/mo"), [str(model)])

    def test_other_shells_parse_theirs(self):
        for shell in ("zsh", "fish"):
            script = run(MILLRACE, "completions", shell)
            self.assertEqual(script.returncode, 0)
            for command in commands():
                self.assertIn(command, script.stdout)
            if shutil.which(shell):
                self.assertEqual(run(shell, "-n", "/dev/stdin", input=script.stdout).returncode, 0, shell)
            else:
                print(f"{shell} is not here: its completions were not parsed")
        self.assertEqual(run(MILLRACE, "completions", "tcsh").returncode, 2)


class Wheel(unittest.TestCase):
    """What `pip install` makes of the wheel in a bare environment."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        version = run(MILLRACE, "--version").stdout.split()[1]
        made = run(sys.executable, ROOT / "packaging/wheel.py", MILLRACE, version, cls.folder.name, *MODULE)
        assert made.returncode == 0, made.stderr
        run(sys.executable, "-m", "venv", cls.folder.name + "/venv")
        cls.bin = cls.folder.name + "/venv/bin/"
        installed = run(cls.bin + "pip", "install", "--no-index", "--no-deps", "--disable-pip-version-check", made.stdout.strip())
        assert installed.returncode == 0, installed.stderr

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def test_the_program_is_on_the_path(self):
        self.assertEqual(run(self.bin + "millrace", "--version").stdout, run(MILLRACE, "--version").stdout)

    def test_the_module_answers_as_the_program_does(self):
        if not MODULE:
            print("the Python module was not built: its tests were not run")
            return self.assertIn("built without its Python module", run(self.bin + "python", "-c", "import millrace").stderr)
        suite = run(self.bin + "python", ROOT / "tests/python/test_llm.py", timeout=1200)
        self.assertEqual(suite.returncode, 0, suite.stderr)


class Pages(unittest.TestCase):
    def test_the_manual_page_names_all_commands(self):
        page = run(MILLRACE, "man").stdout
        for command in commands():
            self.assertIn(f".SS millrace {command}\n", page)
        self.assertIn("\\-\\-port", page)
        if not shutil.which("groff"):
            return print("groff is not here: the manual page was not typeset")
        typeset = run("groff", "-man", "-Tutf8", "-ww", input=page)
        self.assertEqual((typeset.returncode, typeset.stderr), (0, ""))

    def test_the_dashboard_asks_for_metrics_that_there_are(self):
        sources = "".join(p.read_text() for p in (ROOT / "src/serve").glob("*.cpp"))
        dashboard = json.loads((ROOT / "packaging/grafana.json").read_text())
        asked = {name for panel in dashboard["panels"] for target in panel["targets"] for name in re.findall(r"millrace_(\w+)", target["expr"])}
        self.assertGreater(len(asked), 12)
        for name in asked:
            self.assertIn(re.sub("_bucket$", "", name), sources)

    def test_the_unit_starts_what_there_is(self):
        unit = (ROOT / "packaging/millrace.service").read_text()
        self.assertIn("ExecStart=/usr/bin/millrace serve", unit)
        if shutil.which("systemd-analyze"):
            checked = run("systemd-analyze", "verify", "--man=no", str(ROOT / "packaging/millrace.service"))
            complaints = [line for line in checked.stderr.splitlines() if "millrace" in line and "not executable" not in line]
            self.assertEqual(complaints, [])


if __name__ == "__main__":
    unittest.main()
