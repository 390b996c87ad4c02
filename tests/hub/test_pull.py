"""Pulling models by name from a hub on this machine: what comes, what goes wrong, and who may ask.

Run by ctest with the program's path in MILLRACE, by a Python that has huggingface_hub.
"""

import hashlib
import json
import math
import os
import pathlib
import pty
import select
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest

from hub_case import CARD, DIRECTORY, GGUF, PROGRAM, Case, noise, read_all
from hub_server import certificates, commit_of, git_hash


class Pull(Case):
    def test_one_quantization_comes_and_runs(self):
        self.hub.add("owner/Small-GGUF", {"README.md": CARD, "small-Q8_0.gguf": GGUF, "small-F16.gguf": noise(5000, 1)})
        path = self.pull("owner/Small-GGUF:q8_0")
        self.assertEqual(path.read_bytes(), GGUF)
        self.assertEqual(self.blobs("owner/Small-GGUF"), [hashlib.sha256(GGUF).hexdigest()])
        for name in ("owner/Small-GGUF:Q8_0", "owner/Small-GGUF", "small", "OWNER/small-gguf", "small-Q8_0.gguf", path):
            self.assertEqual(json.loads(self.ok("show", name, "--json"))["path"], str(path), name)
        out = json.loads(self.ok("generate", "small", "--tokens", "1,2,3", "--max-tokens", "2", "--json"))
        self.assertEqual(out["prompt_tokens"], [1, 2, 3])
        self.assertEqual(self.names(), ["owner/Small-GGUF:Q8_0"])

    def test_a_directory_comes_with_what_it_needs_alone(self):
        files = {**DIRECTORY, "README.md": CARD, "pytorch_model.bin": noise(3000, 1), "onnx/model.onnx": noise(3000, 2),
                 "original/params.json": b"{}", "generation_config.json": b"{}"}
        self.hub.add("owner/Tiny", files)
        path = self.pull("owner/Tiny")
        self.assertEqual(sorted(p.name for p in path.iterdir()), ["README.md", "config.json", "generation_config.json", "model.safetensors"])
        for file in path.iterdir():
            self.assertEqual(file.read_bytes(), files[file.name])
            self.assertTrue(file.is_symlink())
        facts = json.loads(self.ok("show", "tiny", "--json"))
        self.assertEqual((facts["name"], facts["license"], facts["chat_template"]), ("owner/Tiny", "apache-2.0", False))
        weights = files["model.safetensors"]
        header = json.loads(weights[8:8 + int.from_bytes(weights[:8], "little")])
        self.assertEqual(facts["parameters"], sum(math.prod(t["shape"]) for name, t in header.items() if name != "__metadata__"))
        row, = json.loads(self.ok("list", "--json"))
        self.assertEqual((row["format"], row["commit"], row["problem"]), ("safetensors F32", commit_of("first"), None))

    def test_the_second_time_nothing_moves(self):
        self.hub.add("a/b", {"m.gguf": GGUF})
        self.pull("a/b")
        served = self.hub.served
        self.pull("a/b")
        self.assertEqual(self.hub.served, served)

    def test_a_revision_is_pinned(self):
        repository = self.hub.add("a/b", {"m.gguf": GGUF})
        repository.commits[commit_of("old")] = {"m.gguf": noise(4000, 1)}
        repository.refs["refs/pr/1"] = repository.refs["v1"] = commit_of("old")
        new = self.pull("a/b")
        for revision in ("v1", "refs/pr/1", commit_of("old")):
            path = self.pull(f"a/b@{revision}")
            self.assertEqual(path.parent.name, commit_of("old"))
            self.assertEqual(path.read_bytes(), noise(4000, 1))
        self.assertEqual((new.parent.parent.parent / "refs" / "refs" / "pr" / "1").read_text(), commit_of("old"))
        self.assertEqual(self.names(), ["a/b:m.gguf", f"a/b:m.gguf@{commit_of('old')[:7]}"])
        self.assertEqual(json.loads(self.ok("show", "a/b", "--json"))["path"], str(new))

    def test_what_could_be_several_is_listed_with_sizes(self):
        self.hub.add("a/b", {"m-Q8_0.gguf": noise(2000, 1), "m-Q4_0.gguf": noise(1200, 2)})
        for name in ("a/b", "a/b:Q5_K_M"):
            said = self.refused("pull", name)
            self.assertRegex(said, r"a/b:Q4_0 +1\.20 kB\n *a/b:Q8_0 +2\.00 kB")

    def test_a_loose_name_is_searched_for(self):
        self.hub.add("owner/SmolLM2-135M", {"m.gguf": GGUF})
        self.assertIn("owner/SmolLM2-135M", self.refused("pull", "smollm2"))

    def test_parts_of_one_file_come_side_by_side(self):
        big = noise(20 << 20, 1)
        self.hub.add("a/b", {"m.gguf": big})
        self.assertEqual(self.pull("a/b").read_bytes(), big)
        ranges = [r[3].get("Range") for r in self.asked("cdn")]
        self.assertEqual(len(ranges), 3)
        self.assertIn("bytes=0-8388607", ranges)
        self.assertEqual(self.hub.served, len(big))

    def test_a_server_without_ranges_will_do(self):
        big = noise(20 << 20, 1)
        self.hub.add("a/b", {"m.gguf": big})
        self.hub.knows_ranges = False
        self.assertEqual(self.pull("a/b").read_bytes(), big)

    def test_a_mirror_that_lists_names_alone_is_asked_for_the_rest(self):
        repository = self.hub.add("owner/Tiny", {**DIRECTORY, "README.md": CARD})
        repository.listing = lambda siblings: [{"rfilename": s["rfilename"]} for s in siblings]
        path = self.pull("owner/Tiny")
        self.assertEqual({p.name: p.read_bytes() for p in path.iterdir()}, {**DIRECTORY, "README.md": CARD})
        self.assertEqual(self.blobs("owner/Tiny"), sorted([hashlib.sha256(DIRECTORY["model.safetensors"]).hexdigest(), git_hash(CARD),
                                                           git_hash(DIRECTORY["config.json"])]))

    def test_progress_is_plain_lines_unless_there_is_a_terminal(self):
        self.hub.add("a/b", {"m.gguf": GGUF})
        done = self.run_it("pull", "a/b")
        self.assertNotIn("\x1b", done.stderr)
        self.assertIn("1 file", done.stderr)
        self.ok("rm", "a/b", "--yes")
        self.hub.piece, self.hub.pause = 1 << 14, lambda: time.sleep(0.2)
        leader, follower = pty.openpty()
        process = subprocess.Popen([PROGRAM, "pull", "a/b"], env=self.environment, stderr=follower, stdout=follower)
        os.close(follower)
        text = read_all(leader)
        self.assertEqual(process.wait(60), 0)
        self.assertRegex(text, r"pulling \[=+ *\] +\d+ %  [\d.]+ kB of \d+ kB  [\d.]+ kB/s  \d:\d\d left")


class Trouble(Case):
    def setUp(self):
        super().setUp()
        self.big = noise(3 << 20, 7)
        self.repository = self.hub.add("a/b", {"m.gguf": self.big})

    def test_cut_connections_are_taken_up_where_they_broke(self):
        self.hub.fail(3, "/blobs/", lambda h: h.hang_up() if "Range" in h.headers else h.cut(len(self.big), self.big[:1 << 20]))
        self.assertEqual(self.pull("a/b").read_bytes(), self.big)
        self.assertIn(f"bytes={1 << 20}-{len(self.big) - 1}", [r[3].get("Range") for r in self.asked("cdn")])

    def test_a_cut_after_the_last_byte_loses_nothing(self):
        def all_but_the_end(h):
            h.send_response(200)
            h.send_header("Transfer-Encoding", "chunked")
            h.end_headers()
            h.wfile.write(b"%x\r\n" % len(self.big) + self.big + b"\r\n")
            h.hang_up()
        self.hub.fail(1, "/blobs/", all_but_the_end)
        self.assertEqual(self.pull("a/b").read_bytes(), self.big)
        self.assertEqual(len(self.asked("cdn")), 1)

    def test_a_killed_pull_is_resumed(self):
        size, killed = 1 << 20, threading.Event()
        self.addCleanup(killed.set)
        self.hub.pause = lambda: self.hub.served < size or killed.wait(120)  # the rest never comes
        process = self.start("pull", "a/b")
        kept = self.cache / "models--a--b" / "blobs" / (hashlib.sha256(self.big).hexdigest() + ".incomplete")
        while not kept.exists() or kept.stat().st_size < size:
            self.assertIsNone(process.poll(), "it ended by itself")
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        killed.set()
        self.assertEqual(kept.read_bytes(), self.big[:size])
        self.hub.pause = None
        self.hub.requests.clear()
        self.assertEqual(self.pull("a/b").read_bytes(), self.big)
        self.assertEqual([r[3].get("Range") for r in self.asked("cdn")], [f"bytes={size}-{len(self.big) - 1}"])

    def test_a_foreign_beginning_is_noticed_and_replaced(self):
        folder = self.cache / "models--a--b" / "blobs"
        folder.mkdir(parents=True)
        (folder / (hashlib.sha256(self.big).hexdigest() + ".incomplete")).write_bytes(noise(100_000, 8))
        self.assertEqual(self.pull("a/b").read_bytes(), self.big)

    def test_a_damaged_file_gets_no_name(self):
        wrong = self.big[:-1] + bytes([self.big[-1] ^ 1])
        self.hub.fail(9, "/blobs/", lambda h: h.send_content(wrong))
        self.assertIn("damaged", self.refused("pull", "a/b"))
        self.assertFalse((self.cache / "models--a--b" / "snapshots").exists())
        self.assertNotIn(hashlib.sha256(self.big).hexdigest(), self.blobs("a/b"))

    def test_a_damaged_small_file_is_noticed_by_its_git_hash(self):
        self.hub.add("owner/Tiny", DIRECTORY)
        wrong = DIRECTORY["config.json"].replace(b"1", b"2", 1)
        self.hub.fail(9, "/config.json", lambda h: h.send_content(wrong))
        self.assertIn("config.json of owner/Tiny arrived damaged", self.refused("pull", "owner/Tiny"))

    def test_a_wrong_size_is_said(self):
        for content in (self.big[:-5], self.big + b"more"):
            self.hub.faults.clear()
            self.hub.fail(9, "/blobs/", lambda h: h.send_content(content))
            self.assertIn(f"{len(content)} bytes, though the hub lists it with {len(self.big)}", self.refused("pull", "a/b"))

    def test_what_needs_more_than_the_disk_has_is_not_begun(self):
        def grow(siblings):
            siblings[0]["lfs"]["size"] = 1 << 49
            return siblings
        self.repository.listing = grow
        self.assertRegex(self.refused("pull", "a/b"), r"needs 563 TB, but only .* are free")
        self.assertEqual(self.hub.served, 0)

    def test_errors_of_the_server_pass(self):
        self.hub.fail(2, "/api/", lambda h: h.send_error_code(500, None, "oops"))
        self.hub.fail(2, "/blobs/", lambda h: h.send_error_code(503, None, "busy"))
        self.assertEqual(self.pull("a/b").read_bytes(), self.big)

    def test_errors_that_stay_are_said(self):
        self.hub.fail(99, "/api/", lambda h: h.send_error_code(500, None, "oops"))
        self.assertIn("answers 500 for a/b: oops", self.refused("pull", "a/b"))
        self.assertEqual(len(self.asked(part="/api/")), 5)

    def test_too_many_requests_are_waited_for(self):
        self.hub.fail(1, "/api/", lambda h: h.send_error_code(429, None, "slow down", {"Retry-After": "1"}))
        begin = time.monotonic()
        done = self.run_it("pull", "a/b")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertGreaterEqual(time.monotonic() - begin, 1)
        self.assertIn("asking again in 1 s", done.stderr)
        self.hub.fail(9, "/api/", lambda h: h.send_error_code(429, None, "slow down", {"Retry-After": "3600"}))
        self.assertIn("asks to wait 3600 s", self.refused("pull", "a/b"))

    def test_silence_is_not_waited_out(self):
        stop = threading.Event()
        self.addCleanup(stop.set)
        self.hub.fail(1, "/blobs/", lambda h: (h.send_head(200, len(self.big), {}), h.wfile.write(self.big[:1000]), stop.wait(60)))
        done = self.run_it("pull", "a/b", HF_HUB_DOWNLOAD_TIMEOUT="1")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("is silent", done.stderr)

    def test_nobody_there(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            said = self.refused("pull", "a/b", HF_ENDPOINT=f"http://127.0.0.1:{free.getsockname()[1]}")
        self.assertIn("does not answer", said)
        self.assertIn("is not found", self.refused("pull", "a/b", HF_ENDPOINT="http://no-such-host.invalid"))
        self.assertIn("not an address", self.refused("pull", "a/b", HF_ENDPOINT="hub"))

    def test_names_that_lead_out_are_refused(self):
        for evil in ("../../evil", "/tmp/evil", "a/../../evil", "x\nevil", ""):
            self.repository.listing = lambda s: [*s, {**s[0], "rfilename": evil}]
            self.assertIn("does not lie in it", self.refused("pull", "a/b"))
        self.assertFalse((self.cache / "models--a--b" / "snapshots").exists())

    def test_listings_that_are_none(self):
        for body in (b"[1", b"{}", b'{"sha": "../../x", "siblings": []}', b"[" * 100_000, b'{"sha": "' + b"a" * 40 + b'"}'):
            self.hub.faults.clear()
            self.hub.fail(1, "/api/", lambda h: (h.send_head(200, len(body), {}), h.wfile.write(body)))
            self.assertIn("listing", self.refused("pull", "a/b"))

    def test_a_length_that_no_memory_has_is_not_believed(self):
        self.hub.fail(99, "/api/", lambda h: h.cut(1 << 40, b"{}"))
        self.assertIn("cut the connection", self.refused("pull", "a/b"))

    def test_redirects_are_followed_a_few_times_and_never_in_circles(self):
        self.hub.fail(1, "/api/models/a/b/", lambda h: h.send_head(307, 0, {"Location": h.path}))
        self.pull("a/b")
        self.hub.fail(99, "/api/", lambda h: h.send_head(302, 0, {"Location": h.path}))
        self.assertIn("redirects more than", self.refused("pull", "a/b"))

    def test_refusals_and_redirects_of_any_length_are_not_read(self):
        body = b"x" * (4 << 20)

        def send(status, fields):
            def answer(h):
                h.send_head(status, len(body), fields)
                try:
                    h.wfile.write(body)
                except OSError:  # it has heard enough
                    pass
            return answer
        self.hub.fail(1, "/api/", send(302, {"Location": "/elsewhere"}))
        self.assertIn("redirects with more than", self.refused("pull", "a/b"))
        self.hub.fail(99, "/resolve/", send(404, {}))
        self.assertIn("with more than", self.refused("pull", "a/b"))

    def test_two_at_once_fetch_it_once(self):
        self.hub.piece, self.hub.pause = 1 << 16, lambda: time.sleep(0.01)
        both = [self.start("pull", "a/b") for _ in range(2)]
        for process in both:
            out, err = process.communicate(timeout=120)
            self.assertEqual(process.returncode, 0, err)
            self.assertEqual(pathlib.Path(out.strip()).read_bytes(), self.big)
        self.assertEqual(self.hub.served, len(self.big))


class Access(Case):
    def setUp(self):
        super().setUp()
        self.repository = self.hub.add("a/b", {"m.gguf": GGUF})

    def test_the_token_goes_to_the_hub_alone(self):
        self.repository.token = "hf_secret"
        (self.home / "hf").mkdir()
        (self.home / "hf" / "token").write_text("hf_secret\n")
        (self.home / "elsewhere").write_text("hf_secret")
        for more in ({}, {"HF_TOKEN": "hf_secret"}, {"HF_HOME": str(self.home / "other"), "HF_TOKEN_PATH": str(self.home / "elsewhere")}):
            self.hub.requests.clear()
            self.ok("pull", "a/b", **more)
            self.ok("rm", "-y", "a/b", **more)
            self.assertTrue(all(r[3].get("Authorization") == "Bearer hf_secret" for r in self.asked("hub")))
            self.assertTrue(self.asked("cdn"))
            self.assertFalse([r for r in self.asked("cdn") if "hf_secret" in str(r)])

    def test_what_is_private_or_not_there_says_so(self):
        self.repository.token = "hf_secret"
        self.assertIn("set HF_TOKEN", self.refused("pull", "a/b"))
        self.assertIn("is not accepted", self.refused("pull", "a/b", HF_TOKEN="hf_other"))
        self.assertIn("look at the spelling", self.refused("pull", "a/nothing"))
        self.assertIn("no such revision", self.refused("pull", "a/b@v9", HF_TOKEN="hf_secret"))
        self.assertIn("no token has", self.refused("pull", "a/b", HF_TOKEN="x\ny"))

    def test_gated_models_say_where_to_agree(self):
        self.repository.gated = True
        self.assertIn(f"accept its conditions at {self.hub.address}/a/b", self.refused("pull", "a/b"))

    def test_offline_is_respected(self):
        self.assertIn("HF_HUB_OFFLINE", self.refused("pull", "a/b", HF_HUB_OFFLINE="1"))
        self.assertFalse(self.hub.requests)

    def test_the_cache_is_where_it_is_told_to_be(self):
        path = self.pull("a/b", HF_HUB_CACHE=str(self.home / "there"))
        self.assertTrue(path.is_relative_to(self.home / "there" / "models--a--b"))


class Tls(Case):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.tls = certificates(cls.folder)

    def test_a_trusted_authority_is_enough(self):
        self.hub.add("a/b", {"m.gguf": GGUF})
        for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"):
            self.assertEqual(self.pull("a/b", **{name: str(self.folder / "ca.pem")}).read_bytes(), GGUF)

    def test_a_stranger_is_not(self):
        self.hub.add("a/b", {"m.gguf": GGUF})
        self.assertRegex(self.refused("pull", "a/b"), "certificate that is not trusted here: .*SSL_CERT_FILE")
        self.assertFalse(self.hub.requests)

    def test_nor_one_with_another_name(self):
        said = self.refused("pull", "a/b", SSL_CERT_FILE=str(self.folder / "ca.pem"), HF_ENDPOINT=self.hub.address.replace("127.0.0.1", "localhost"))
        self.assertRegex(said, "not trusted here: .*mismatch")

    def test_through_a_proxy(self):
        proxy = self.enterContext(Proxy({"hub.test:443": ("127.0.0.1", self.hub.servers[0].server_port)}))
        self.hub.add("a/b", {"m.gguf": GGUF})
        trust = {"SSL_CERT_FILE": str(self.folder / "ca.pem"), "HF_ENDPOINT": "https://hub.test"}
        self.assertEqual(self.pull("a/b", HTTPS_PROXY=f"http://me:pw@127.0.0.1:{proxy.port}", **trust).read_bytes(), GGUF)
        self.assertIn("CONNECT hub.test:443 HTTP/1.1", proxy.heads[0])
        self.assertIn("Proxy-Authorization: Basic bWU6cHc=", proxy.heads[0])
        self.assertIn("is not found", self.refused("pull", "a/b", HTTPS_PROXY=f"127.0.0.1:{proxy.port}", NO_PROXY="x.com,.test", **trust))
        self.assertIn("its proxy says 403", self.refused("pull", "a/b", HTTPS_PROXY=f"127.0.0.1:{proxy.port}", SSL_CERT_FILE=trust["SSL_CERT_FILE"],
                                                         HF_ENDPOINT="https://elsewhere.test"))


class PlainProxy(Case):
    def test_is_told_the_whole_address(self):
        self.hub.add("a/b", {"m.gguf": GGUF})
        path = self.pull("a/b", HF_ENDPOINT="http://hub.invalid", http_proxy=self.hub.address)
        self.assertEqual(path.read_bytes(), GGUF)


class Proxy:
    """Passes bytes on between a client and the host that CONNECT names."""

    def __init__(self, hosts):
        self.hosts, self.heads = hosts, []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]

    def __enter__(self):
        threading.Thread(target=self.accept, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.listener.close()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, client):
        head = b""
        while b"\r\n\r\n" not in head:
            head += client.recv(4096)
        self.heads.append(head.decode())
        host = self.hosts.get(head.split()[1].decode())
        if host is None:
            client.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
            return client.close()
        client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        with socket.create_connection(host) as server:
            while True:
                for source in select.select([client, server], [], [])[0]:
                    if not (data := source.recv(65536)):
                        return client.close()
                    (server if source is client else client).sendall(data)


if __name__ == "__main__":
    unittest.main()
