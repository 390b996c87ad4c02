"""Raw bytes to a server, and the status of the response."""

import json
import socket
import struct
import time


class Wire:
    """Connections to one server."""

    def __init__(self, port, timeout=60):
        self.port, self.timeout = port, timeout

    def connect(self, receive_buffer=None):
        s = socket.socket()
        s.settimeout(self.timeout)
        if receive_buffer:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        s.connect(("127.0.0.1", self.port))
        return s

    def status(self, words):
        """The status of the first response to raw bytes."""
        with self.connect() as s:
            try:
                s.sendall(words)
            except (BrokenPipeError, ConnectionResetError):
                pass  # it may have closed already; its response can still be read
            return status_of(s)

    def post(self, path, body, *headers):
        return self.status(post(path, body, *headers))

    def leave(self, words, n, pause=0):
        """Resets the connection after n bytes."""
        with self.connect() as s:
            try:
                s.sendall(words[:n])
                time.sleep(pause)
                s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            except (BrokenPipeError, ConnectionResetError):
                pass
        return 0


def status_of(s):
    data = b""
    try:
        while b"\r\n" not in data and (part := s.recv(65536)):
            data += part
    except (BrokenPipeError, ConnectionResetError):
        pass
    return int(data.split()[1]) if data.startswith(b"HTTP/1.1 ") else 0 if not data else -1


def post(path, body, *headers):
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    if not any(h.lower().startswith(b"host:") for h in headers):
        headers = (b"Host: localhost", *headers)
    return b"\r\n".join([b"POST %s HTTP/1.1" % path.encode(), b"Content-Length: %d" % len(body), *headers]) + b"\r\n\r\n" + body
