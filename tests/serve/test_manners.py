"""The server's log, model names, API keys, and its errors for unknown fields.

MILLRACE is the program's path. Only the loopback is used.
"""

import json
import os
import signal
import subprocess
import tempfile
import unittest

from millrace_server import FIXTURES, PROGRAM, Server
from tiny_model import tiny_model

TINY = FIXTURES / "llama_gqa"
ASK = {"prompt": [1, 2, 3], "max_tokens": 4, "ignore_eos": True}


class Log(unittest.TestCase):
    def lines(self, server, *words):
        """Waits for log lines that contain all of these words, and returns them."""
        found = lambda: [line for line in server.log if all(word in line for word in words)]
        server.wait_for(found)
        return found()

    def test_a_line_a_request(self):
        server = Server(TINY)
        response, _ = server.raw("POST", "/v1/completions", ASK)
        [line] = self.lines(server, "/v1/completions", " 200 ")
        self.assertIn(response.getheader("X-Request-Id"), line)
        self.assertIn("3 + 4 tokens", line)
        self.assertIn("tokens/s", line)
        server.raw("POST", "/v1/completions", {**ASK, "temprature": 1})
        [line] = self.lines(server, " 400 ")
        self.assertIn("did you mean 'temperature'?", line)
        server.raw("GET", "/health")
        server.raw("GET", "/nowhere%1b%5b2J")
        self.lines(server, " 404 ")
        self.assertFalse([line for line in server.log if "/health" in line or "\x1b" in line])
        server.process.send_signal(signal.SIGTERM)
        self.assertEqual(server.stop(), 0)
        self.assertTrue([line for line in server.log if "draining" in line])

    def test_objects(self):
        server = Server(TINY, "--log-json")
        server.raw("POST", "/v1/completions", ASK)
        entry = json.loads(self.lines(server, "/v1/completions")[0])
        self.assertEqual((entry["status"], entry["prompt_tokens"], entry["completion_tokens"], entry["level"]), (200, 3, 4, "info"))
        self.assertGreater(entry["ttft_s"], 0)
        self.assertNotIn("[1, 2, 3]", "".join(server.log))
        self.assertEqual(server.stop(), 0)

    def test_what_a_template_says_of_a_conversation_is_for_the_client_alone(self):
        server = Server(*tiny_model("{{ raise_exception('I do not like ' ~ messages[0].content) }}"))
        for path in ["/v1/chat/completions", "/tokenize"]:
            status, said = server.json("POST", path, {"messages": [{"role": "user", "content": "my secret"}]})
            self.assertEqual((status, said["error"]["code"]), (400, "template_error"))
            self.assertIn("I do not like my secret", said["error"]["message"])
            self.lines(server, path, " 400 ", "the chat template refuses the conversation")
        self.assertNotIn("secret", "".join(server.log))
        self.assertEqual(server.stop(), 0)

    def test_a_log_that_nobody_reads_holds_nobody_up(self):
        process = subprocess.Popen([PROGRAM, "serve", TINY, "--port", "0"], stderr=subprocess.PIPE, text=True)
        server = Server.__new__(Server)
        server.process, server.port = process, int(process.stderr.readline().split(":")[2].split("/")[0])
        for _ in range(1500):  # over 64 KiB of lines
            self.assertEqual(server.raw("GET", "/v1/models/" + "x" * 60)[0].status, 404)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(60), 0)
        process.stderr.close()


class Names(unittest.TestCase):
    def test_aliases_and_lenient_fields(self):
        server = Server(TINY, "--served-model-name", "tiny", "--alias", "gpt-4", "--alias", "other,third", "--lenient-fields")
        self.assertEqual([m["id"] for m in server.json("GET", "/v1/models")[1]["data"]], ["tiny", "gpt-4", "other", "third"])
        self.assertEqual(server.json("GET", "/v1/models/other")[0], 200)
        for name, status in [("tiny", 200), ("gpt-4", 200), ("gpt-5", 404)]:
            self.assertEqual(server.json("POST", "/v1/completions", {**ASK, "model": name, "temprature": 1})[0], status, name)
        server.wait_for(lambda: any("temprature" in line and "warn" in line for line in server.log))
        self.assertEqual(server.stop(), 0)

    def test_head(self):
        server = Server(TINY)
        for path in ["/health", "/ready", "/metrics", "/v1/models", "/openapi.json"]:
            get, head = server.raw("GET", path), server.raw("HEAD", path)
            self.assertEqual((head[0].status, head[1], head[0].getheader("Content-Type")), (200, b"", get[0].getheader("Content-Type")))
        self.assertEqual(server.raw("HEAD", "/v1/completions")[0].status, 405)
        self.assertEqual(server.stop(), 0)


class Keys(unittest.TestCase):
    def check(self, server):
        ask = lambda key: server.raw("GET", "/v1/models", headers={"Authorization": "Bearer " + key})[0].status
        self.assertEqual([ask("sesame"), ask("sesam"), ask("")], [200, 401, 401])
        self.assertEqual(server.stop(), 0)

    def test_from_a_file(self):
        with tempfile.NamedTemporaryFile("w") as file:
            file.write("sesame\n")
            file.flush()
            self.check(Server(TINY, "--api-key-file", file.name))

    def test_from_the_environment(self):
        os.environ["MILLRACE_API_KEY"] = "sesame"
        try:
            self.check(Server(TINY))
        finally:
            del os.environ["MILLRACE_API_KEY"]


if __name__ == "__main__":
    unittest.main()
