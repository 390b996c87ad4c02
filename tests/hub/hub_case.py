"""A home, a hub on this machine and the program, for tests of models by name. What Hugging Face's own variables say is forgotten: import this
before huggingface_hub."""

import hashlib
import json
import os
import pathlib
import subprocess
import tempfile
import unittest

os.environ["HF_HUB_DISABLE_XET"] = os.environ["HF_HUB_DISABLE_TELEMETRY"] = os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
for name in [n for n in os.environ if n.lower().endswith("_proxy")] + ["HF_TOKEN", "HF_HOME", "HF_HUB_CACHE", "HF_ENDPOINT", "HF_HUB_OFFLINE"]:
    os.environ.pop(name, None)

from hub_server import Hub  # noqa: E402

PROGRAM = os.environ["MILLRACE"]
FIXTURES = pathlib.Path(__file__).parent.parent / "fixtures"
GGUF = (FIXTURES / "models" / "gguf_q8_0" / "model.gguf").read_bytes()
DIRECTORY = {p.name: p.read_bytes() for p in (FIXTURES / "models" / "llama_gqa").iterdir() if p.name in ("config.json", "model.safetensors")}
CARD = b"---\nlicense: apache-2.0\n---\n# A model\n"


def noise(n, seed):
    """Bytes that no two places share."""
    out = b"".join(hashlib.sha256(f"{seed} {i}".encode()).digest() for i in range(n // 32 + 1))
    return out[:n]


class Case(unittest.TestCase):
    tls = None

    def setUp(self):
        self.home = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.hub = Hub(self.tls)
        self.addCleanup(self.hub.close)
        self.cache = self.home / "hf" / "hub"
        self.environment = {"PATH": os.environ["PATH"], "HOME": str(self.home), "HF_HOME": str(self.home / "hf"), "HF_ENDPOINT": self.hub.address,
                            "XDG_RUNTIME_DIR": str(self.home / "run")}

    def start(self, *words, **more):
        return subprocess.Popen([PROGRAM, *map(str, words)], env={**self.environment, **more}, text=True, cwd=self.home,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def run_it(self, *words, **more):
        process = self.start(*words, **more)
        out, err = process.communicate(timeout=120)
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    def ok(self, *words, **more):
        done = self.run_it(*words, **more)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def refused(self, *words, **more):
        """One sentence on stderr and exit status 1."""
        done = self.run_it(*words, **more)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        last = [line for line in done.stderr.splitlines() if line.startswith("millrace: ")]
        self.assertEqual(len(last), 1, done.stderr)
        return done.stderr

    def pull(self, name, **more):
        return pathlib.Path(self.ok("pull", name, **more).strip())

    def names(self):
        return [row["name"] for row in json.loads(self.ok("list", "--json"))]

    def blobs(self, repo):
        folder = self.cache / ("models--" + repo.replace("/", "--")) / "blobs"
        return sorted(p.name for p in folder.iterdir()) if folder.exists() else []

    def asked(self, role=None, part=""):
        return [r for r in self.hub.requests if (role is None or r[0] == role) and part in r[2]]


def read_all(leader):
    out = b""
    while True:
        try:
            piece = os.read(leader, 65536)
        except OSError:
            piece = b""
        if not piece:
            os.close(leader)
            return out.decode()
        out += piece
