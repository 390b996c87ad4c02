"""A proxy in front of a server: it mocks the answers to POST requests and forwards every GET."""

import http.client
import http.server
import json
import threading


def chunk(content="", finish=None, **delta):
    choice = {"index": 0, "delta": {"content": content, **delta}, "finish_reason": finish}
    return {"id": "x", "object": "chat.completion.chunk", "model": "mock", "choices": [choice]}


class MockProxy:
    """answer(body) yields what is sent: objects as server-sent events, bytes unchanged. When it ends, the connection is closed."""

    def __init__(self, port, answer):
        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def do_GET(self):
                upstream = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
                upstream.request("GET", self.path, headers={k: v for k, v in self.headers.items() if k.lower() in ("authorization", "if-none-match")})
                response = upstream.getresponse()
                body = response.read()
                self.send_response(response.status)
                for name, value in response.getheaders():
                    if name.lower() not in ("connection", "content-length", "transfer-encoding", "date", "server"):
                        self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
                upstream.close()

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                parts = iter(answer(body))
                first = next(parts)
                if isinstance(first, tuple):  # a status and a whole body
                    self.send_response(first[0])
                    self.end_headers()
                    self.wfile.write(first[1])
                    return
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.end_headers()
                try:
                    self.write(first)
                    for part in parts:
                        self.write(part)
                except OSError:
                    pass  # the browser disconnected

            def write(self, part):
                self.wfile.write(part if isinstance(part, bytes) else b"data: " + json.dumps(part).encode() + b"\n\n")
                self.wfile.flush()

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}/"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()
