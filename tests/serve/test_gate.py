"""Nothing that comes in brings the server down: what a client may send, hold and leave unread, against the whole program.

MILLRACE is the program's path. Only the loopback is used; bounds on time are generous, for busy machines.
"""

import concurrent.futures
import http.client
import json
import os
import signal
import socket
import struct
import tempfile
import threading
import time
import unittest

from millrace_server import FIXTURES, NAME, Server

TINY = FIXTURES / "llama_gqa"
SLOW = float(os.environ.get("MILLRACE_SLOWDOWN", 1))  # of a build with sanitizers


def connect(server):
    return socket.create_connection(("127.0.0.1", server.port), timeout=30)


def post(path, body, *headers):
    head = [b"POST %s HTTP/1.1" % path.encode(), b"Host: localhost", b"Content-Length: %d" % len(body), *headers]
    return b"\r\n".join(head) + b"\r\n\r\n" + body


def status_of(server, words, body_follows=b""):
    """Of the first answer to bare bytes; 0: the server closed without one."""
    with connect(server) as s:
        try:
            s.sendall(words)
            s.sendall(body_follows)
        except OSError:
            pass  # it may have closed by then; its answer is there
        data = b""
        try:
            while b"\r\n" not in data and (part := s.recv(65536)):
                data += part
        except OSError:
            pass
        return int(data.split()[1]) if data else 0


def resident(server):
    with open(f"/proc/{server.process.pid}/status") as status:
        fields = dict(line.split(":", 1) for line in status)
    return int(fields["VmRSS"].split()[0]) * 1024


class Watch:
    """The slowest answer of /health and the largest resident memory while something happens."""

    def __init__(self, server):
        self.server, self.slowest, self.peak, self.over = server, 0, 0, False
        self.thread = threading.Thread(target=self.run)

    def run(self):
        while not self.over:
            begin = time.time()
            assert self.server.raw("GET", "/health")[0].status == 200
            self.slowest = max(self.slowest, time.time() - begin)
            self.peak = max(self.peak, resident(self.server))
            time.sleep(0.005)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over = True
        self.thread.join()


class Gate(unittest.TestCase):
    ARGS = [TINY]

    @classmethod
    def setUpClass(cls):
        cls.server = Server(*cls.ARGS)

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0

    def tearDown(self):
        self.assertIsNone(self.server.process.poll(), "the server has died")
        self.assertEqual(self.server.raw("GET", "/health")[0].status, 200)

    def quiet(self):
        """Nothing is left behind: no memory, no place in the queue."""
        self.server.wait_for(lambda: self.server.metric("num_requests_queued") == 0 and self.server.metric("num_requests_running") == 0)
        self.server.wait_for(lambda: self.server.metric("http_memory_bytes") <= 1 << 20)


class Framing(Gate):
    def test_chunks_extensions_and_trailers(self):
        chunked = b"%s HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        get, ask = chunked % b"GET /health", chunked % b"POST /v1/completions"
        for head in [get, ask]:
            self.assertEqual(status_of(self.server, head + b"0\r\nX: " + b"x" * 65535), 431)
            self.assertEqual(status_of(self.server, head + b"0\r\n" + b"x" * 65536 + b": y\r\n\r\n"), 431)
            self.assertEqual(status_of(self.server, head + b"0\r\n" + b"A: b\r\n" * 20000), 431)
            self.assertEqual(status_of(self.server, head + b"5;" + b"x" * 70000), 431)
            self.assertEqual(status_of(self.server, head + b"1;abcdefgh\r\nx\r\n" * 20000), 431)
            self.assertEqual(status_of(self.server, head + b"f" * 17 + b"\r\n"), 400)
            self.assertEqual(status_of(self.server, head + b"ffffffffffffffff\r\n"), 413)
            self.assertEqual(status_of(self.server, head + b"900000\r\n"), 413)
        self.assertEqual(status_of(self.server, get + b"0\r\nX: y\r\n\r\n"), 200)
        self.assertEqual(self.server.metric("http_connections_failed_total"), 0)

    def test_floods_of_framing_take_no_memory(self):
        before = resident(self.server)
        flood = b"x" * (1 << 20)
        for head in [b"1;", b"0\r\nX: "]:
            status_of(self.server, b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + head, flood * 40)
        self.assertLess(resident(self.server) - before, 16 << 20)

    def test_heads(self):
        for head, status in [
            (b"GET /health HTTP/1.1\r\n" + b"A: b\r\n" * 200 + b"\r\n", 431),
            (b"GET /health HTTP/1.1\r\nX: " + b"y" * 20000, 431),
            (b"GET /" + b"x" * 20000, 431),
            (b"POST /tokenize HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n", 400),
            (b"POST /tokenize HTTP/1.1\r\nContent-Length: 9999999999\r\n\r\n", 413),
            (b"POST /tokenize HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
            (b"POST /tokenize HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n", 400),
            (b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n", 400),
            (b"GET /health HTTP/1.1\r\nX: a\r\n b\r\n\r\n", 200),  # an obsolete fold
            (b"HEAD /health HTTP/1.1\r\n\r\n", 200),
            (b"HEAD /v1/models HTTP/1.1\r\n\r\n", 200),
        ]:
            self.assertEqual(status_of(self.server, head), status, head[:80])

    def test_resets_at_every_byte(self):
        words = post("/v1/completions", b'{"prompt":[1,2,3],"max_tokens":3,"stream":true}')
        for n in range(len(words) + 1):
            s = connect(self.server)
            s.sendall(words[:n])
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            s.close()
        self.quiet()


class Bodies(Gate):
    def test_costly_json_holds_nobody_up(self):
        keys = json.dumps({f"key{i}": 0 for i in range(80000)}).encode()
        nested = b'{"prompt":' + b"[" * 200000 + b"]" * 200000 + b"}"
        many = b'{"prompt":[' + b"{}," * 2000000 + b"1]}"
        strings = b'{"prompt":[' + b'"",' * 2000000 + b'"x"]}'
        twice = b'{"prompt":[1],"prompt":[2]}'
        objects = b'{"messages":[' + b",".join([json.dumps({f"k{i}": 0 for i in range(3000)}).encode()] * 200) + b"]}"
        with Watch(self.server) as watch, concurrent.futures.ThreadPoolExecutor(8) as pool:
            jobs = [(body, pool.submit(status_of, self.server, post(path, body)))
                    for path in ["/v1/completions", "/v1/chat/completions"] for body in [keys, keys, nested, many, strings, twice, objects]]
            for body, job in jobs:
                self.assertEqual(job.result(), 400, body[:50])
        self.assertLess(watch.slowest, 1 * SLOW)
        self.assertLess(watch.peak, resident(self.server) + (600 << 20))
        self.quiet()

    def test_too_many_answers(self):
        for n, prompts, status in [(8, 129, 400), (64, 256, 400), (1, 257, 400), (64, 16, 200)]:
            body = {"prompt": [[1]] * prompts, "n": n, "max_tokens": 1, "logit_bias": {str(i): 1 for i in range(100)}}
            self.assertEqual(self.server.json("POST", "/v1/completions", body)[0], status, (n, prompts))
        body = {"prompt": [1], "logit_bias": {str(i): 1 for i in range(1025)}}
        self.assertEqual(self.server.json("POST", "/v1/completions", body)[0], 400)

    def test_health_has_a_body_too(self):
        self.assertEqual(status_of(self.server, b"GET /health HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 1000000), 200)


class Memory(Gate):
    ARGS = [TINY, "--http-memory", "64M", "--max-queue", 2]

    def test_unfinished_bodies(self):
        before, crowd = resident(self.server), []
        with Watch(self.server) as watch:
            for i in range(60):
                s = connect(self.server)
                s.settimeout(5)
                crowd.append(s)
                try:
                    s.sendall(b"POST /v1/completions HTTP/1.1\r\nContent-Length: 8000001\r\n\r\n" + b" " * 8000000)
                except OSError:
                    pass  # refused, or cut
        self.assertLess(watch.peak - before, 100 << 20)
        self.assertLessEqual(self.server.metric("http_memory_peak_bytes"), 64 << 20)
        self.assertGreater(self.server.metric("http_memory_peak_bytes"), 16 << 20)
        for s in crowd:
            s.close()
        self.quiet()

    def test_answers_that_nobody_reads(self):
        before, crowd = resident(self.server), []
        body = json.dumps({"tokens": [1] * 400000}).encode()
        ask = json.dumps({"prompt": [1, 2, 3], "max_tokens": 200, "ignore_eos": True, "logprobs": 20, "n": 8}).encode()
        with Watch(self.server) as watch:
            for i in range(40):
                s = connect(self.server)
                s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                s.sendall(post("/v1/completions", ask) if i % 2 else post("/detokenize", body))
                crowd.append(s)
            self.server.wait_for(lambda: self.server.metric("num_requests_running") == 0, 60 * SLOW)
        self.assertLess(watch.peak - before, 120 << 20)
        for s in crowd:
            s.close()
        self.quiet()


class Key(Gate):
    ARGS = [TINY, "--api-key", "sesame"]

    def test_the_key_comes_before_the_body(self):
        for words in [b"POST /v1/completions HTTP/1.1\r\nContent-Length: 8000000\r\n\r\n",
                      b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
                      b"POST /v1/completions HTTP/1.1\r\nContent-Length: 8\r\nExpect: 100-continue\r\n\r\n",
                      b"POST /v1/completions HTTP/1.1\r\nAuthorization: Bearer sesam\r\nContent-Length: 8000000\r\n\r\n",
                      b"POST /v1/completions HTTP/1.1\r\nContent-Length: 0\r\nTransfer-Encoding: \r\n\r\n"]:
            self.assertIn(status_of(self.server, words), (400, 401))
        trailer = b"POST /tokenize HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nAuthorization: Bearer sesame\r\n\r\n"
        self.assertEqual(status_of(self.server, trailer), 401)

    def test_schemes(self):
        ask = lambda value: self.server.raw("GET", "/v1/models", headers={"Authorization": value})[0].status
        for good in ["Bearer sesame", "bearer sesame", "BEARER  sesame"]:
            self.assertEqual(ask(good), 200, good)
        for bad in ["Bearer Sesame", "sesame", "Basic sesame", "Bearer sesame sesame", "Bearer", ""]:
            self.assertEqual(ask(bad), 401, bad)
        self.assertEqual(self.server.raw("GET", "/openapi.json")[0].status, 200)


class Strangers(Gate):
    ARGS = [TINY, "--allow-origin", "http://page.example"]

    def ask(self, body=b'{"prompt":[1],"max_tokens":1}', method="POST", path="/v1/completions", **headers):
        return self.server.raw(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})[0]

    def test_names_of_the_server(self):
        for host, status in [("localhost", 200), ("127.0.0.1:1", 200), ("[::1]:8000", 200), ("evil.example", 403), ("localhost.evil.example", 403),
                             ("127.0.0.1.evil.example:8000", 403)]:
            self.assertEqual(self.ask(Host=host, Content_Type="application/json").status, status, host)
            self.assertEqual(self.ask(None, "GET", "/v1/models", Host=host).status, status, host)

    def test_pages(self):
        for origin in ["http://evil.example", "null", "http://page.example", "https://localhost"]:
            for kind in ["text/plain", "application/x-www-form-urlencoded"]:
                self.assertEqual(self.ask(Origin=origin, Content_Type=kind).status, 403, (origin, kind))
        good = self.ask(Origin="http://page.example", Content_Type="application/json")
        self.assertEqual((good.status, good.getheader("Access-Control-Allow-Origin")), (200, "http://page.example"))
        other = self.ask(Origin="http://evil.example", Content_Type="application/json")
        self.assertIsNone(other.getheader("Access-Control-Allow-Origin"))
        wrong = self.ask(b"{}", Origin="http://page.example", Content_Type="application/json")
        self.assertEqual((wrong.status, wrong.getheader("Access-Control-Allow-Origin")), (400, "http://page.example"))

    def test_preflights(self):
        ask = dict(Access_Control_Request_Method="POST", Access_Control_Request_Headers="authorization,content-type,x-stainless-lang,x-stainless-timeout,openai-beta")
        good = self.ask(None, "OPTIONS", Origin="http://page.example", **ask)
        self.assertEqual(good.status, 204)
        self.assertEqual(set(good.getheader("Access-Control-Allow-Headers").split(", ")), set(ask["Access_Control_Request_Headers"].split(",")))
        bad = self.ask(None, "OPTIONS", Origin="http://evil.example", **ask)
        self.assertIsNone(bad.getheader("Access-Control-Allow-Origin"))
        self.assertGreaterEqual(bad.status, 400)


class Crowds(Gate):
    def test_idle_connections_lock_nobody_out(self):
        crowd = []
        for i in range(4300):
            s = socket.socket()
            s.settimeout(30)
            s.connect(("127.0.0.1", self.server.port))
            if i % 4 == 1:
                s.send(b"GET /health HT")
            crowd.append(s)
            if i % 100 == 99:
                self.assertEqual(self.server.raw("GET", "/health")[0].status, 200)
        for _ in range(10):
            begin = time.time()
            self.assertEqual(self.server.json("POST", "/v1/completions", {"prompt": [1], "max_tokens": 1})[0], 200)
            self.assertLess(time.time() - begin, 5 * SLOW)
        for s in crowd:
            s.close()
        self.server.wait_for(lambda: self.server.metric("http_connections") < 10)

    def test_who_leaves_while_it_is_read_leaves_nothing(self):
        body = json.dumps({"prompt": [[1] * 50] * 200, "n": 2, "max_tokens": 1}).encode()
        for i in range(30):
            with connect(self.server) as s:
                s.sendall(post("/v1/completions", body))
                time.sleep(i * 0.001)
        self.quiet()


class Templates(unittest.TestCase):
    def test_a_costly_template_holds_nobody_up(self):
        with tempfile.NamedTemporaryFile("w", suffix=".jinja") as template:
            template.write("{% for a in range(10000000) %}{% for b in range(10000) %}{% if a > b %}{% endif %}{% endfor %}{% endfor %}{{ messages[0].content }}")
            template.flush()
            server = Server("--chat-template", template.name, "--threads", 1)
            ask = post("/v1/chat/completions", b'{"messages":[{"role":"user","content":"hi"}],"max_tokens":1}')
            with Watch(server) as watch, concurrent.futures.ThreadPoolExecutor(6) as pool:
                for status in pool.map(lambda _: status_of(server, ask), range(6)):
                    self.assertIn(status, (400, 503))
            self.assertLess(watch.slowest, 1 * SLOW)
            self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    unittest.main()
