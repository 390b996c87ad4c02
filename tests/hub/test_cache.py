"""Models by name once they are here: list, show, rm, ps, and the cache that Hugging Face's own client shares.

Run by ctest with the program's path in MILLRACE, by a Python that has huggingface_hub.
"""

import hashlib
import json
import os
import pathlib
import pty
import re
import subprocess
import unittest

from hub_case import CARD, DIRECTORY, GGUF, PROGRAM, Case, noise, read_all
from hub_server import commit_of
import huggingface_hub  # after hub_case, which clears its environment


class Shared(Case):
    """The cache between millrace and huggingface_hub."""

    def setUp(self):
        super().setUp()
        self.files = {**DIRECTORY, "README.md": CARD, "generation_config.json": b"{}"}
        self.hub.add("owner/Tiny", self.files)
        self.hub.add("owner/Small-GGUF", {"a/small-Q8_0.gguf": GGUF, "small-F16.gguf": noise(5000, 1), "README.md": CARD})

    def scan(self):
        info = huggingface_hub.scan_cache_dir(self.cache)
        self.assertFalse(info.warnings)
        self.assertFalse(getattr(info, "incomplete_files", ()))
        return {r.repo_id: r for r in info.repos}

    def test_what_we_write_they_read(self):
        tiny, small = self.pull("owner/Tiny"), self.pull("owner/Small-GGUF:Q8_0")
        found = huggingface_hub.snapshot_download("owner/Tiny", cache_dir=self.cache, local_files_only=True)
        self.assertEqual(pathlib.Path(found), tiny)
        found = huggingface_hub.hf_hub_download("owner/Small-GGUF", "a/small-Q8_0.gguf", cache_dir=self.cache, local_files_only=True)
        self.assertEqual(pathlib.Path(found), small)
        repos = self.scan()
        self.assertEqual(set(repos), {"owner/Tiny", "owner/Small-GGUF"})
        self.assertEqual(repos["owner/Tiny"].size_on_disk, sum(map(len, self.files.values())))
        revision, = repos["owner/Small-GGUF"].revisions
        self.assertEqual((revision.commit_hash, revision.refs), (commit_of("first"), {"main"}))

    def test_what_they_write_we_read_and_complete(self):
        theirs = huggingface_hub.snapshot_download("owner/Tiny", cache_dir=self.cache, endpoint=self.hub.address)
        huggingface_hub.hf_hub_download("owner/Small-GGUF", "small-F16.gguf", cache_dir=self.cache, endpoint=self.hub.address)
        self.assertEqual(self.names(), ["owner/Small-GGUF:F16", "owner/Tiny"])
        self.assertEqual(json.loads(self.ok("show", "owner/Tiny", "--json"))["path"], theirs)
        self.hub.served = 0
        self.assertEqual(str(self.pull("owner/Tiny")), theirs)
        self.assertEqual(self.hub.served, 0)
        self.pull("owner/Small-GGUF:Q8_0")
        self.assertEqual(self.names(), ["owner/Small-GGUF:F16", "owner/Small-GGUF:Q8_0", "owner/Tiny"])
        self.assertIn("could be any of 2", self.refused("show", "small"))
        self.scan()

    def test_removing_keeps_what_others_need(self):
        self.pull("owner/Tiny")
        self.pull("owner/Small-GGUF:Q8_0")
        self.pull("owner/Small-GGUF:F16")
        repository = self.hub.repositories["owner/Tiny"]
        repository.commits[commit_of("second")] = {**self.files, "config.json": self.files["config.json"] + b" "}
        repository.refs["main"] = commit_of("second")
        self.pull("owner/Tiny")
        old = f"owner/Tiny@{commit_of('first')[:7]}"
        self.assertEqual(self.names(), ["owner/Small-GGUF:F16", "owner/Small-GGUF:Q8_0", "owner/Tiny", old])
        self.assertIn(f"{len(self.files['config.json'])} bytes are free again", self.ok("rm", "--yes", old))
        self.assertEqual(self.scan()["owner/Tiny"].size_on_disk, sum(map(len, self.files.values())) + 1)
        self.ok("rm", "-y", "owner/Small-GGUF:F16")
        self.assertEqual(self.names(), ["owner/Small-GGUF:Q8_0", "owner/Tiny"])
        self.assertEqual(self.blobs("owner/Small-GGUF"), [hashlib.sha256(GGUF).hexdigest()])
        self.scan()
        for part in ("small", "tiny", "Tiny", "owner/Small", "Small-GGUF:Q8_0"):
            self.refused("rm", "-y", part)
        self.assertEqual(self.names(), ["owner/Small-GGUF:Q8_0", "owner/Tiny"])
        self.ok("rm", "-y", "owner/small-gguf", "owner/tiny")
        self.assertEqual((self.names(), [p.name for p in self.cache.iterdir()]), ([], [".locks"]))

    def test_removing_asks(self):
        self.pull("owner/Tiny")
        self.assertIn("--yes", self.refused("rm", "owner/Tiny"))
        self.assertIn("part of the name 'owner/Tiny'", self.refused("rm", "tiny"))
        for answer, left in (("n", ["owner/Tiny"]), ("", ["owner/Tiny"]), ("y", [])):
            leader, follower = pty.openpty()
            process = subprocess.Popen([PROGRAM, "rm", "-y", "tiny"], env=self.environment, stdin=follower, stdout=follower, stderr=follower)
            os.close(follower)
            os.write(leader, answer.encode() + b"\n")
            self.assertIn("Delete owner/Tiny", read_all(leader))
            self.assertEqual(process.wait(60), 0)
            self.assertEqual(self.names(), left, answer)

    def test_paths_are_never_removed(self):
        folder = self.home / "mine"
        folder.mkdir()
        (folder / "m.gguf").write_bytes(GGUF)
        self.refused("rm", "-y", folder / "m.gguf")
        self.refused("rm", "-y", folder)
        self.assertTrue((folder / "m.gguf").exists())

    def test_links_lead_no_deletion_elsewhere(self):
        folder = self.home / "mine"
        folder.mkdir()
        for name, content in DIRECTORY.items():
            (folder / name).write_bytes(content)
        own = self.home / ".cache" / "millrace" / "models"
        own.mkdir(parents=True)
        (own / "linked").symlink_to(folder)
        self.ok("rm", "-y", "linked")
        self.assertFalse((own / "linked").is_symlink())
        snapshots = self.cache / "models--evil--link" / "snapshots"
        snapshots.mkdir(parents=True)
        (snapshots / ("a" * 40)).symlink_to(folder)
        (snapshots.parent / "refs").mkdir()
        (snapshots.parent / "refs" / "main").write_text("a" * 40)
        self.assertIn("is a link", self.refused("rm", "-y", "evil/link"))
        self.assertEqual({f.name for f in folder.iterdir()}, set(DIRECTORY))

    def test_an_incomplete_model_says_how_to_complete_it(self):
        path = self.pull("owner/Tiny")
        (path / "model.safetensors").resolve().unlink()
        self.assertIn("millrace pull owner/Tiny", self.refused("show", "owner/Tiny"))
        self.assertIn("model.safetensors is missing", json.loads(self.ok("list", "--json"))[0]["problem"])
        self.pull("owner/Tiny")
        self.ok("show", "owner/Tiny")


class Names(Case):
    def test_what_is_not_here_says_how_to_get_it(self):
        self.assertIn("`millrace pull owner/Model:Q4_0`", self.refused("show", "owner/Model:Q4_0"))
        self.assertIn("`millrace list`", self.refused("tokenize", "nothing", "text"))
        self.assertIn("pull OWNER/NAME", self.ok("list") + self.run_it("list").stderr)
        self.hub.add("owner/Tiny", DIRECTORY)
        self.pull("owner/Tiny")
        self.assertIn("did you mean 'owner/Tiny'?", self.refused("inspect", "owner/Tyni"))

    def test_own_files_have_names_too(self):
        folder = self.home / ".cache" / "millrace" / "models"
        folder.mkdir(parents=True)
        (folder / "Some-Model.Q8_0.gguf").write_bytes(GGUF)
        (folder / "Tiny").mkdir()
        for name, content in DIRECTORY.items():
            (folder / "Tiny" / name).write_bytes(content)
        os.utime(folder / "Some-Model.Q8_0.gguf", (1577934245, 1577934245))
        self.assertEqual(self.names(), ["Some-Model.Q8_0", "Tiny"])
        self.assertEqual(json.loads(self.ok("list", "--json", "some"))[0]["modified"], "2020-01-02T03:04:05Z")
        self.assertRegex(self.ok("list"), r"Some-Model.Q8_0 +[\d.]+ kB +GGUF Q8_0 +\d+ days ago")
        for name in ("Some-Model", "some-model.q8_0", "somemodel", "some"):
            self.assertEqual(json.loads(self.ok("show", name, "--json"))["path"], str(folder / "Some-Model.Q8_0.gguf"))
        self.refused("rm", "-y", "some")
        self.ok("rm", "-y", "tiny", "some-model.q8_0")
        self.assertEqual(list(folder.iterdir()), [])


class Ps(Case):
    def test_shows_what_runs_and_forgets_what_ended(self):
        self.hub.add("owner/Tiny", DIRECTORY)
        self.pull("owner/Tiny")
        server = self.start("serve", "owner/Tiny", "--port", "0", "--threads", "1")
        self.addCleanup(server.communicate)
        self.addCleanup(server.kill)
        port = re.search(r":(\d+)/v1", server.stderr.readline())[1]
        row, = json.loads(self.ok("ps", "--json"))
        self.assertEqual((row["pid"], row["model"], row["address"]), (server.pid, "owner/Tiny", f"http://127.0.0.1:{port}"))
        self.assertEqual((row["running"], row["waiting"]), (0, 0))
        self.assertGreater(row["memory_bytes"], 1 << 20)
        self.assertRegex(self.ok("ps"), rf"{server.pid} +owner/Tiny +http://127.0.0.1:{port}")
        entries = list((self.home / "run" / "millrace").iterdir())
        self.assertEqual(len(entries), 1)
        server.kill()
        server.wait()
        self.assertEqual(json.loads(self.ok("ps", "--json")), [])
        self.assertEqual(list((self.home / "run" / "millrace").iterdir()), [])

    def test_another_process_of_the_same_number_is_none_of_ours(self):
        folder = self.home / "run" / "millrace"
        folder.mkdir(parents=True)
        (folder / f"serve-{os.getpid()}.json").write_text(json.dumps({"pid": os.getpid(), "started": 1, "host": "127.0.0.1", "port": 1, "model": "x"}))
        (folder / "serve-9.json").write_text("{")
        self.assertIn("No server runs", self.run_it("ps").stderr)
        self.assertEqual(list(folder.iterdir()), [])


if __name__ == "__main__":
    unittest.main()
