"""What strangers may send: each function is one visit to the server, good or bad. The classes are those of what can go wrong:

1 framing     bytes that are no HTTP, or more of it than anyone needs        5 files       not here: models, see attack.py
2 work        bodies that cost more than they weigh                          6 leaving     hang-ups while a request is taken in
3 memory      bodies, answers and streams that the server has to hold        7 strangers   other Hosts and Origins, idle connections
4 templates   conversations that make a template run for ever                8 storm       plain requests, many of them

A visit gives the status of its answer; 0: there was none, or nobody stayed for it. `allowed` says which are right.
"""

import functools
import json
import socket
import struct
import time

ATTACKS = {}  # by name
BUSY = {429, 503}


class Attack:
    def __init__(self, function, kind, allowed, waits):
        self.name, self.visit, self.kind, self.allowed, self.waits = function.__name__, function, kind, set(allowed), waits


def attack(kind, *allowed, waits=False):
    """`waits`: it takes its time on purpose, so its seconds say nothing about the server."""
    def add(function):
        ATTACKS[function.__name__] = Attack(function, kind, allowed, waits)
        return function
    return add


class Wire:
    """The way to one server."""

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
        """Of the first answer to bare bytes."""
        with self.connect() as s:
            try:
                s.sendall(words)
            except (BrokenPipeError, ConnectionResetError):
                pass  # it may have closed by then; its answer is there
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


def plain(rng, **more):
    return {"prompt": [rng.randrange(600) for _ in range(rng.randint(1, 40))], "max_tokens": rng.randint(1, 30), "ignore_eos": True, **more}


@functools.cache
def made(name):
    """Large bodies are made once: making them would cost the attackers more than the server."""
    million = 1 << 20
    return {
        "keys": lambda: json.dumps({f"key{i}": 0 for i in range(80000)}).encode(),
        "nested": lambda: b'{"prompt":' + b"[" * 200000 + b"]" * 200000 + b"}",
        "objects": lambda: b'{"prompt":[' + b"{}," * million + b"1]}",
        "strings": lambda: b'{"prompt":[' + b'"",' * million + b'"x"]}',
        "wide": lambda: b'{"messages":[' + b",".join([json.dumps({f"k{i}": 0 for i in range(3000)}).encode()] * 100) + b"]}",
        "twins": lambda: json.dumps({"messages": [{"k" * 4000 + str(i): 0 for i in range(1000)}]}).encode(),
        "one piece": lambda: json.dumps({"prompt": "a" * (2 * million)}).encode(),
        "words": lambda: json.dumps({"prompt": "the quick brown fox, " * (million // 10)}).encode(),
        "letters": lambda: json.dumps({"prompt": "a1" * million}).encode(),
        "spaces": lambda: json.dumps({"prompt": " " * million}).encode(),
        "accents": lambda: json.dumps({"prompt": "e\u0301\u0327" * (million // 6)}, ensure_ascii=False).encode(),
        "specials": lambda: json.dumps({"prompt": "<|im_start|>" * (million // 12)}).encode(),
        "tokens": lambda: json.dumps({"tokens": [599] * 400000}).encode(),
        "arguments": lambda: json.dumps({"messages": [{"role": "assistant", "content": "", "tool_calls": [
            {"function": {"name": "f", "arguments": json.dumps({"a": [{}] * 90000})}}] * 8}]}).encode(),
        "answers": lambda: json.dumps({"prompt": [[1]] * 256, "n": 4, "max_tokens": 2, "logit_bias": {str(i): 1 for i in range(600)}}).encode(),
        "too many answers": lambda: json.dumps({"prompt": [[1]] * 256, "n": 64, "max_tokens": 1}).encode(),
        "a little less": lambda: b"POST /v1/completions HTTP/1.1\r\nContent-Length: 1048500\r\n\r\n" + b" " * (million - 4096),
        "half a body": lambda: b"POST /v1/completions HTTP/1.1\r\nContent-Length: 8000001\r\n\r\n" + b" " * 4 * million,
        "half a chunk": lambda: b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n700000\r\n" + b" " * 4 * million,
    }[name]()


# ---- 1 framing

CHUNKED = b"%s HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"


@attack(1, 431)
def trailers(wire, rng):
    end = rng.choice([b"0\r\nX: " + b"x" * 65535, b"0\r\n" + b"x" * 65536 + b": y\r\n\r\n", b"0\r\n" + b"A: b\r\n" * 20000])
    return wire.status(CHUNKED % rng.choice([b"GET /health", b"POST /v1/completions"]) + end)


@attack(1, 431)
def extensions(wire, rng):
    end = rng.choice([b"5;" + b"x" * 200000, b"1;abcdefgh\r\nx\r\n" * 20000, b"1;a=\"" + b"\\\"" * 40000])
    return wire.status(CHUNKED % rng.choice([b"GET /health", b"POST /v1/completions"]) + end)


@attack(1, 400, 413)
def sizes_of_chunks(wire, rng):
    size = rng.choice([b"f" * 17, b"ffffffffffffffff", b"900000", b"-1", b"0x5", b"+5", b" 5", b"", b"8000000000000000"])
    return wire.status(CHUNKED % b"POST /v1/completions" + size + b"\r\n\r\n")


@attack(1, 400, 413, 431)
def heads(wire, rng):
    return wire.status(rng.choice([
        b"GET /health HTTP/1.1\r\n" + b"A: b\r\n" * 200 + b"\r\n",
        b"GET /health HTTP/1.1\r\nX: " + b"y" * 20000,
        b"GET /" + b"x" * 20000,
        b"POST /tokenize HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\nContent-Length: 9999999999\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
        b"GET /health HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"]))


@attack(1, 0, 400, 431, waits=True)
def noise(wire, rng):
    with wire.connect() as s:
        s.sendall(rng.randbytes(rng.randint(1, 2000)))
        s.settimeout(0.1)
        try:
            return status_of(s)
        except TimeoutError:  # it waits for the end of a line
            return 0


@attack(1, 200)
def pipelines(wire, rng):
    n = rng.randint(2, 30)
    with wire.connect() as s:
        s.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" * (n - 1) + b"GET /health HTTP/1.1\r\nConnection: close\r\n\r\n")
        data = b""
        while part := s.recv(65536):
            data += part
    return 200 if data.count(b"HTTP/1.1 200 ") == n else -1


# ---- 2 work

@attack(2, 400, *BUSY)
def costly_json(wire, rng):
    path = rng.choice(["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"])
    return wire.post(path, made(rng.choice(["keys", "nested", "objects", "strings", "wide", "twins"])))


@attack(2, 200, 400, *BUSY)
def long_texts(wire, rng):
    path = rng.choice(["/tokenize", "/v1/completions"])
    return wire.post(path, made(rng.choice(["one piece", "words", "letters", "spaces", "accents", "specials"])))


@attack(2, 400, *BUSY)
def opened_arguments(wire, rng):
    return wire.post("/v1/chat/completions", made("arguments"))


def absurd(rng):
    return rng.choice([
        None, True, False, 0, -1, 1, 2**31, 2**31 - 1, -2**31, 2**63, 2**64, 10**30, 1e308, -1e308, 1e-320, 0.5, "", "x", "\x00", "\ud800", "x" * 5000,
        [], {}, [[]], [{}], {"": ""}, [None], [1, "a"], [-1], [600], [2**40], ["x"] * 1000, {"a": {"b": {"c": []}}}, {str(i): i for i in range(2000)},
        [[1] * 10] * 300, {"role": "user"}, [{"role": "user", "content": {"a": 1}}], [{"type": "text", "text": 1}], "\u202e\x1b[2J\n"])


FIELDS = ["model", "prompt", "messages", "max_tokens", "max_completion_tokens", "n", "best_of", "stream", "stream_options", "temperature", "top_k", "top_p",
          "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty", "logit_bias", "seed", "stop", "ignore_eos", "logprobs", "top_logprobs",
          "echo", "priority", "cache_salt", "user", "tools", "tool_choice", "chat_template_kwargs", "response_format", "parallel_tool_calls", "suffix",
          "add_special_tokens", "tokens", "temprature", "__proto__", "", "\x1b]0;x\x07"]


@attack(2, 200, 400, 404, *BUSY)
def absurd_fields(wire, rng):
    path = rng.choice(["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"])
    body = {"prompt": [1, 2, 3], "max_tokens": 2} if "chat" not in path else {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    for _ in range(rng.randint(1, 4)):
        body[rng.choice(FIELDS)] = absurd(rng)
    return wire.post(path, json.dumps(body).encode())


@attack(2, 200, 400, 404, *BUSY)
def broken_json(wire, rng):
    body = bytearray(json.dumps(plain(rng, max_tokens=2, stop=["x", "\n"], logit_bias={"5": -1.5}, model="")).encode())
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(body))
        change = rng.randrange(4)
        if change == 0:
            body[at] = rng.randrange(256)
        elif change == 1:
            del body[at:at + rng.randint(1, 8)]
        elif change == 2:
            body[at:at] = body[rng.randrange(len(body)):][:rng.randint(1, 20)]
        else:
            body[at:at] = rng.choice([b'"', b"{", b"[", b"\\", b"\\u12", b"1e999", b"\xff", b"\x00", b",,", b"nul"])
        if not body:
            break
    return wire.post("/v1/completions", bytes(body))


# ---- 3 memory

@attack(3, 0, 503, waits=True)
def unfinished_bodies(wire, rng):
    with wire.connect() as s:
        s.settimeout(2)
        try:
            s.sendall(made(rng.choice(["half a body", "half a chunk", "a little less", "a little less"])))
            return status_of(s)
        except (TimeoutError, BrokenPipeError, ConnectionResetError):  # it waits for the rest, or was cut
            return 0


@attack(3, 0, waits=True)
def unread_answers(wire, rng):
    large = {"prompt": [1, 2, 3], "max_tokens": 200, "ignore_eos": True, "logprobs": 20, "n": 8, "stream": rng.random() < 0.5}
    with wire.connect(receive_buffer=4096) as s:
        try:
            s.sendall(post("/detokenize", made("tokens")) if rng.random() < 0.5 else post("/v1/completions", large))
            time.sleep(rng.uniform(0.5, 2))
        except (BrokenPipeError, ConnectionResetError):
            pass
    return 0


@attack(3, 200, *BUSY)
def large_answers(wire, rng):
    return wire.post("/detokenize", made("tokens"))


@attack(3, 200, *BUSY)
def many_answers(wire, rng):
    return wire.post("/v1/completions", made("answers"))


@attack(3, 400, *BUSY)
def too_many_answers(wire, rng):
    return wire.post("/v1/completions", made("too many answers"))


# ---- 4 templates

def for_ever(body):
    return "{% for i in range(100000) %}{% for j in range(100000) %}" + body + "{% endfor %}{% endfor %}"


def grown(first, following, n, use=""):
    return "{% set ns = namespace(v=" + first + ") %}{% for i in range(" + str(n) + ") %}{% set ns.v = " + following + " %}{% endfor %}" + use


HOSTILE = [
    for_ever(""), for_ever("xxxxxxxx"), for_ever("{{ i * j // 7 }}"), grown("[]", "[ns.v].index", 100000), grown("{}", "{'m': ns.v}.get", 100000),
    grown("'x'", "ns.v + ns.v", 100), grown("[1]", "ns.v * 2", 100), grown("[1]", "[ns.v, ns.v]", 60, "{{ ns.v }}"), grown("'\"'", "ns.v|tojson", 100),
    grown("(1,)", "(ns.v, ns.v)", 60, "{{ {ns.v: 1} }}"), "{% set s = 'a' * 4000000 %}" + for_ever("{{ ('a' * 2000000 + 'b') in s }}"),
    "{% set s = 'a' * 1000000 %}" + for_ever("{{ s.strip('a') }}"), "{% set s = 'a' * 1000000 %}" + for_ever("{{ s.replace('', 'x')|length }}"),
    "{% set s = 'a ' * 1000000 %}" + for_ever("{{ s.split()|length }}"), "{% set l = range(100000)|list %}" + for_ever("{{ (l|sort(reverse=true))[0] }}"),
    "{% set l = [range(1000)|list] * 100000 %}" + for_ever("{{ l|map('map', 'string')|map('join')|join|length }}"), "{{ 'x' * 1000000000000 }}",
    "{{ [1, 2] * 9223372036854775807 }}", "{% macro r(n) %}{{ r(n + 1) }}{% endmacro %}{{ r(0) }}",
    "{{ ('x' * 30000000)|list|length }}", "{{ ('x' * 16000000) }}" * 2, "{{ [1]|batch(4000000000, 'x')|list|length }}", "{{ '%999999999d' % 1 }}",
]
CHAT = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"


def hostile_template():
    """An honest one, unless a conversation names an attack."""
    branches = "".join(("{% if" if i == 0 else "{% elif") + f" attack == {i} %}}{text}" for i, text in enumerate(HOSTILE))
    return "{% if attack is defined %}" + branches + "{% endif %}{% endif %}" + CHAT


def conversation(rng, **more):
    return {"messages": [{"role": "user", "content": "hi " * rng.randint(1, 20)}], "max_tokens": 3, **more}


@attack(4, 400, *BUSY)
def templates(wire, rng):
    path = rng.choice(["/v1/chat/completions", "/tokenize"])
    body = conversation(rng, chat_template_kwargs={"attack": rng.randrange(len(HOSTILE))})
    if path == "/tokenize":
        del body["max_tokens"]
    return wire.post(path, body)


@attack(4, 0, waits=True)
def templates_left_alone(wire, rng):
    words = post("/v1/chat/completions", conversation(rng, chat_template_kwargs={"attack": rng.randrange(len(HOSTILE))}))
    return wire.leave(words, len(words), rng.uniform(0, 0.1))


# ---- 6 leaving

@attack(6, 0, waits=True)
def hang_ups(wire, rng):
    words = post("/v1/completions", plain(rng, stream=rng.random() < 0.5, n=rng.randint(1, 3)))
    return wire.leave(words, rng.randint(0, len(words)))


@attack(6, 0, waits=True)
def leaving_while_it_is_read(wire, rng):
    words = post("/v1/completions", {"prompt": [[1] * 50] * 100, "n": 2, "max_tokens": 1})
    return wire.leave(words, len(words), rng.uniform(0, 0.03))


@attack(6, 0, 200, *BUSY, waits=True)
def aborted_streams(wire, rng):
    with wire.connect() as s:
        s.sendall(post("/v1/completions", plain(rng, max_tokens=1000, stream=True)))
        data = b""
        while len(data) < rng.randint(1, 4000) and (part := s.recv(rng.randint(1, 500))):
            data += part
        if rng.random() < 0.5:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return int(data.split()[1]) if data.startswith(b"HTTP/1.1 ") and len(data) > 12 else 0


# ---- 7 strangers

@attack(7, 400, 403)
def foreign_hosts(wire, rng):
    host = rng.choice([b"evil.example", b"localhost.evil.example", b"127.0.0.1.evil.example:8000", b"[::2]", b"0.0.0.0", b"localhost:x", b"a\x1b[2J"])
    return wire.post("/v1/completions", plain(rng), b"Host: " + host, b"Content-Type: application/json")


@attack(7, 403)
def foreign_pages(wire, rng):
    origin = rng.choice([b"http://evil.example", b"null", b"http://localhost:1", b"http://page.example"])
    kind = rng.choice([b"text/plain", b"application/x-www-form-urlencoded", b"multipart/form-data; boundary=x", b"text/plain; application/json"])
    return wire.post("/v1/completions", plain(rng), b"Host: localhost", b"Origin: " + origin, b"Content-Type: " + kind)


@attack(7, 401, 403, 404, 405)
def preflights(wire, rng):
    return wire.status(b"OPTIONS /v1/completions HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil.example\r\n"
                       b"Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: content-type\r\n\r\n")


@attack(7, 0, waits=True)
def idle_connections(wire, rng):
    crowd = []
    try:
        for _ in range(20):
            crowd.append(wire.connect())
            if rng.random() < 0.3:
                crowd[-1].send(b"GET /health HT")
        time.sleep(rng.uniform(0.2, 2))
    finally:
        for s in crowd:
            s.close()
    return 0


@attack(7, 0, 200, *BUSY, waits=True)
def slow_writers(wire, rng):
    words = post("/v1/completions", plain(rng, max_tokens=2))
    with wire.connect() as s:
        for i in range(len(words)):
            s.sendall(words[i:i + 1])
            time.sleep(0.005)
        return status_of(s)


@attack(7, 0, 200, *BUSY, waits=True)
def slow_readers(wire, rng):
    with wire.connect(receive_buffer=4096) as s:
        s.sendall(post("/v1/completions", plain(rng, max_tokens=100, stream=True, logprobs=5)))
        data = b""
        for _ in range(100):
            part = s.recv(40)
            data += part
            if not part:
                break
            time.sleep(0.01)
        return int(data.split()[1]) if data else 0


# ---- 8 storm

@attack(8, 200, *BUSY)
def storm(wire, rng):
    if rng.random() < 0.3:
        return wire.post("/v1/chat/completions", conversation(rng))
    more = [{}, {"temperature": 0}, {"n": 3}, {"stream": True}, {"logprobs": 3, "echo": True}, {"presence_penalty": 1, "top_k": 5}, {"priority": 5}]
    return wire.post("/v1/completions", plain(rng, **rng.choice(more)))


@attack(8, 200, 404, 503)
def probes(wire, rng):
    path = rng.choice([b"/metrics", b"/v1/models", b"/openapi.json", b"/", b"/v1/models/x", b"/health", b"/nothing"])
    return wire.status(b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
