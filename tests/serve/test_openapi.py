"""The server beside its own description: schemathesis asks what /openapi.json allows and what it does not, and no answer may be
undescribed or the server's fault. MILLRACE is the program's path; the seed is fixed, so that a failure comes again.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from millrace_server import Server

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,response_schema_conformance,negative_data_rejection,unsupported_method"


class OpenApi(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--max-context", 64, "--max-seqs", 8, "--threads", 1)  # short answers

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0

    def test_every_route_is_described(self):
        document = self.server.json("GET", "/openapi.json")[1]
        self.assertEqual(document["openapi"], "3.1.0")
        source = pathlib.Path(__file__).parents[2] / "src/serve/openapi.json"
        self.assertEqual(document, json.loads(source.read_text()))
        for path, item in document["paths"].items():
            for method in ["get", "post"]:
                status = self.server.raw(method.upper(), path.replace("{id}", "x"))[0].status
                self.assertEqual(status == 405, method not in item, (path, method, status))
        self.assertEqual(self.server.raw("GET", "/v1/nothing")[0].status, 404)

    def test_schemathesis_finds_nothing(self):
        examples = os.environ.get("MILLRACE_SCHEMA_EXAMPLES", "40")  # a number, not seconds: every machine asks the same
        with tempfile.TemporaryDirectory() as folder:
            command = [str(pathlib.Path(sys.executable).parent / "schemathesis"), "run", f"http://127.0.0.1:{self.server.port}/openapi.json",
                       "--checks", CHECKS, "--phases", "coverage,fuzzing", "--max-examples", examples, "--seed", "1", "--request-timeout", "60",
                       "--workers", "1", "--generation-database", "none", "--suppress-health-check", "all", "--no-color", "--warnings", "off"]
            out = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=1200)
        self.assertEqual(out.returncode, 0, out.stdout[-6000:] + out.stderr[-2000:])
        self.assertEqual(self.server.metric("http_connections_failed_total"), 0)


if __name__ == "__main__":
    unittest.main()
