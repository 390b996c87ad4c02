"""Runs the program under test, whose path is in MILLRACE."""

import json
import os
import pathlib
import subprocess

PROGRAM = os.environ["MILLRACE"]
FIXTURES = pathlib.Path(__file__).parent.parent / "fixtures" / "models"
MODEL = "SmolLM2-135M-Instruct"


def run(*args, stdin=None):
    source = {"stdin": subprocess.DEVNULL} if stdin is None else {"input": stdin}
    return subprocess.run([PROGRAM, *map(str, args)], capture_output=True, text=True, timeout=300, **source)


def ok(*args, stdin=None):
    result = run(*args, stdin=stdin)
    assert result.returncode == 0, result.stderr
    return result.stdout


def as_json(*args):
    return json.loads(ok(*args, "--json"))
