"""A hub on this machine that speaks Hugging Face's API, with a second server as its CDN, and makes the mistakes it is told to make.

Repositories are dictionaries; every request is kept in `requests`. Faults are functions that get the handler before it answers:
what returns True has answered itself.
"""

import hashlib
import http.server
import json
import re
import socket
import ssl
import subprocess
import threading
import urllib.parse

LARGE = 1024  # bytes; from here on a file is stored by its SHA-256 and served by the CDN


def commit_of(name):
    return hashlib.sha1(name.encode()).hexdigest()


def git_hash(content):
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class Repository:
    def __init__(self, files, commit="first"):
        self.commits = {commit_of(commit): dict(files)}
        self.refs = {"main": commit_of(commit)}
        self.token = None  # who does not send it is refused
        self.gated = False
        self.listing = lambda siblings: siblings  # what becomes of it

    def commit(self, revision):
        return self.refs.get(revision, revision if revision in self.commits else None)

    def siblings(self, commit):
        for name, content in self.commits[commit].items():
            entry = {"rfilename": name, "size": len(content), "blobId": git_hash(content)}
            if len(content) >= LARGE:
                entry["lfs"] = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}
            yield entry


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.answer()

    def do_GET(self):
        self.answer()

    def answer(self):
        owner = self.server.owner
        path = self.path
        if path.startswith("http://"):  # through a proxy
            path = "/" + path.split("/", 3)[3]
        self.url = urllib.parse.urlsplit(path)
        self.words = urllib.parse.unquote(self.url.path)
        with owner.lock:
            owner.requests.append((self.server.role, self.command, path, dict(self.headers)))
            faults = list(owner.faults)
        for fault in faults:
            if fault(self):
                return
        if self.server.role == "cdn":
            return self.send_content(self.server.owner.contents[self.url.path.split("/")[-1]])
        if self.url.path == "/api/models":
            wanted = urllib.parse.parse_qs(self.url.query)["search"][0].lower()
            return self.send_json([{"id": name} for name in owner.repositories if wanted in name.lower()])
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/([^/]+))?", self.url.path):
            return self.send_listing(found[1], urllib.parse.unquote(found[2] or "main"))
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/([^/]+)", self.url.path):
            return self.send_tree(found[1], urllib.parse.unquote(found[2]))
        if found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", self.url.path):
            return self.send_file(found[1], urllib.parse.unquote(found[2]), urllib.parse.unquote(found[3]))
        self.send_error_code(404, "RepoNotFound", "Repository not found")

    def repository(self, name):
        r = self.server.owner.repositories.get(name)
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if r is None or (r.token and not token):
            return self.send_error_code(401, "RepoNotFound", "Invalid username or password.")
        if r.token and token != r.token:
            return self.send_error_code(401, None, "Invalid credentials in Authorization header")
        if r.gated:
            return self.send_error_code(403, "GatedRepo", "Access to this model is restricted.")
        return r

    def send_listing(self, name, revision):
        if (r := self.repository(name)) is None:
            return
        if (commit := r.commit(revision)) is None:
            return self.send_error_code(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        siblings = r.listing(list(r.siblings(commit)))
        if "blobs=true" not in self.url.query:
            siblings = [{"rfilename": s["rfilename"]} for s in siblings]
        self.send_json({"id": name, "modelId": name, "sha": commit, "siblings": siblings, "private": False, "tags": [], "downloads": 1})

    def send_tree(self, name, revision):
        if (r := self.repository(name)) is None:
            return
        entries = []
        for s in r.siblings(r.commit(revision)):
            entry = {"type": "file", "path": s["rfilename"], "size": s["size"], "oid": s["blobId"]}
            if "lfs" in s:
                entry["lfs"] = {"oid": s["lfs"]["sha256"], "size": s["size"], "pointerSize": 134}
            entries.append(entry)
        self.send_json(entries)

    def send_file(self, name, revision, file):
        if (r := self.repository(name)) is None:
            return
        commit = r.commit(revision)
        if commit is None or file not in r.commits[commit]:
            return self.send_error_code(404, "EntryNotFound", "Entry not found")
        content = r.commits[commit][file]
        if len(content) < LARGE:
            return self.send_content(content, {"ETag": f'"{git_hash(content)}"', "X-Repo-Commit": commit})
        digest = hashlib.sha256(content).hexdigest()
        self.server.owner.contents[digest] = content
        self.send_head(302, 0, {"Location": f"{self.server.owner.cdn}/blobs/{digest}", "X-Linked-ETag": f'"{digest}"',
                                "X-Linked-Size": str(len(content)), "X-Repo-Commit": commit, "ETag": '"a-link"'})

    def send_head(self, status, length, headers):
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(length))
        self.end_headers()

    def send_content(self, content, headers=None):
        owner = self.server.owner
        headers = {"Accept-Ranges": "bytes", **(headers or {})}
        status, body = 200, content
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if asked and owner.knows_ranges:
            begin, end = int(asked[1]), int(asked[2] or len(content) - 1) + 1
            if begin >= len(content):
                return self.send_head(416, 0, {"Content-Range": f"bytes */{len(content)}"})
            status, body = 206, content[begin:end]
            headers["Content-Range"] = f"bytes {begin}-{begin + len(body) - 1}/{len(content)}"
        self.send_head(status, len(body), headers)
        if self.command == "HEAD":
            return
        for at in range(0, len(body), owner.piece):
            if owner.pause:
                owner.pause()
            piece = body[at:at + owner.piece]
            self.wfile.write(piece)
            with owner.lock:
                owner.served += len(piece)

    def send_json(self, value):
        body = json.dumps(value).encode()
        self.send_head(200, len(body), {"Content-Type": "application/json"})
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_error_code(self, status, code, message, headers=None):
        body = json.dumps({"error": message}).encode()
        headers = {"Content-Type": "application/json", "X-Error-Message": message, **(headers or {})}
        if code:
            headers["X-Error-Code"] = code
        self.send_head(status, len(body), headers)
        if self.command != "HEAD":
            self.wfile.write(body)

    def cut(self, declared, sent):
        """An answer that ends before it should."""
        self.send_head(200, declared, {})
        self.wfile.write(sent)
        self.hang_up()

    def hang_up(self):
        self.wfile.flush()
        self.connection.shutdown(socket.SHUT_RDWR)
        self.close_connection = True


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, owner, role, tls):
        super().__init__(("127.0.0.1", 0), Handler)
        self.owner, self.role = owner, role
        if tls:
            self.socket = tls.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def handle_error(self, *_):
        pass  # clients that hang up


class Hub:
    def __init__(self, tls=None):
        self.lock = threading.Lock()
        self.repositories, self.contents = {}, {}
        self.requests, self.faults = [], []
        self.served = 0  # bytes of files
        self.piece, self.pause = 1 << 16, None
        self.knows_ranges = True
        scheme = "https" if tls else "http"
        self.servers = [Server(self, role, tls) for role in ("hub", "cdn")]
        self.address, self.cdn = (f"{scheme}://127.0.0.1:{s.server_port}" for s in self.servers)

    def close(self):
        for server in self.servers:
            server.shutdown()
            server.server_close()

    def add(self, name, files):
        self.repositories[name] = Repository(files)
        return self.repositories[name]

    def fail(self, times, part, answer):
        """The next requests whose path has `part` in it are answered by `answer`."""
        left = [times]

        def fault(handler):
            if part not in handler.path or handler.command == "HEAD" or left[0] == 0:
                return False
            left[0] -= 1
            answer(handler)
            return True

        self.faults.append(fault)


def certificates(folder):
    """A made-up authority and a certificate of it for 127.0.0.1 and hub.test."""
    def openssl(*words):
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=made up")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:hub.test\n")
    openssl("req", "-newkey", "rsa:2048", "-nodes", "-keyout", "hub.key", "-out", "hub.csr", "-subj", "/CN=hub.test")
    openssl("x509", "-req", "-in", "hub.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-out", "hub.pem", "-days", "2",
            "-extfile", "names")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "hub.pem", folder / "hub.key")
    return context
