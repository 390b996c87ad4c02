"""A server in a process of its own, for tests: only the loopback is used, and every wait is bounded."""

import atexit
import http.client
import json
import os
import pathlib
import re
import signal
import subprocess
import threading
import time

import openai

PROGRAM = os.environ["MILLRACE"]
FIXTURES = pathlib.Path(__file__).parent.parent / "fixtures" / "models"
NAME = "SmolLM2-135M-Instruct"


class Server:
    reader = None  # of the log

    def __init__(self, *args, port=0):
        command = [PROGRAM, "serve", *map(str, args), "--port", str(port)]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        atexit.register(self.process.kill)  # of a test that fails
        killer = threading.Timer(120, self.process.kill)  # a server that never says where it is
        killer.start()
        self.log = []  # what it says besides; a pipe that is not read would fill
        while not (found := re.search(r"http://127\.0\.0\.1:(\d+)", line := self.process.stderr.readline())):
            assert line, "".join(self.log)
            self.log.append(line)
        killer.cancel()
        self.port = int(found.group(1))
        self.reader = threading.Thread(target=lambda: self.log.extend(self.process.stderr), daemon=True)
        self.reader.start()
        self.client = self.new_client()

    def new_client(self, key="none"):
        return openai.OpenAI(base_url=f"http://127.0.0.1:{self.port}/v1", api_key=key, max_retries=0, timeout=120)

    def raw(self, method, path, body=None, headers={}):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request(method, path, body if body is None or isinstance(body, (bytes, str)) else json.dumps(body), headers)
        response = connection.getresponse()
        data = response.read()
        connection.close()
        return response, data

    def json(self, method, path, body=None):
        response, data = self.raw(method, path, body)
        return response.status, json.loads(data)

    def metric(self, name):
        """Of one sample, or of all samples of that name together."""
        text = self.raw("GET", "/metrics")[1].decode()
        found = [float(line.split()[-1]) for line in text.splitlines() if line.startswith(("millrace_" + name + " ", "millrace_" + name + "{"))]
        assert found, f"no {name} in\n{text}"
        return sum(found)

    def wait_for(self, condition, seconds=60):
        end = time.time() + seconds
        while not condition():
            assert time.time() < end, "it did not happen in time"
            time.sleep(0.02)

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(60)
        finally:
            self.process.kill()
        if self.reader:
            self.reader.join(60)  # the log is whole
        return status
