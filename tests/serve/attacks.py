"""Requests of strangers: each function is one visit to the server, honest or hostile. The classes are those of what can go wrong:

1 framing     bytes that are no HTTP, or more of it than anyone needs        5 files       not here: models, see attack.py
2 work        bodies that cost more than they weigh                          6 leaving     hang-ups while a request is taken in
3 memory      bodies, answers and streams that the server has to hold        7 strangers   other Hosts and Origins, idle connections
4 templates   conversations that make a template run for ever                8 storm       plain requests, many of them

A visit gives the status of its answer; 0: there was none, or nobody stayed for it. `allowed` says which are right.
"""

import json
import socket
import struct
import time

from attack_bodies import made
from attack_templates import HOSTILE
from wire import post, status_of

ATTACKS = {}  # by name
BUSY = {429, 503}


class Attack:
    def __init__(self, function, kind, allowed, waits):
        self.name, self.visit, self.kind, self.allowed, self.waits = function.__name__, function, kind, set(allowed), waits


def attack(kind, *allowed, waits=False):
    """`waits`: it is slow on purpose, so its duration says nothing about the server."""
    def add(function):
        ATTACKS[function.__name__] = Attack(function, kind, allowed, waits)
        return function
    return add


def plain(rng, **more):
    return {"prompt": [rng.randrange(600) for _ in range(rng.randint(1, 40))], "max_tokens": rng.randint(1, 30), "ignore_eos": True, **more}


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


@attack(1, 400)
def bodies_in_two_ways(wire, rng):
    """Framing that a proxy may parse differently (request smuggling)."""
    return wire.status(rng.choice([
        CHUNKED % b"POST /tokenize" + b"3 x\r\nabc\r\n0\r\n\r\n",
        CHUNKED % b"POST /tokenize" + b"3\t=\r\nabc\r\n0\r\n\r\n",
        CHUNKED % b"POST /tokenize" + b"3\x0b;\r\nabc\r\n0\r\n\r\n",
        CHUNKED % b"POST /tokenize" + b"0\r\nno colon\r\n\r\n",
        CHUNKED % b"POST /tokenize" + b"0\r\nA: b\r\n folded\r\n\r\n",
        CHUNKED % b"POST /tokenize" + b"0\r\n: empty\r\n\r\n",
        CHUNKED % b"POST /tokenize" + b"0\r\nA B: c\r\n\r\n",
        CHUNKED % b"POST /tokenize" + b"3\nabc\n0\n\n",
        CHUNKED % b"POST /tokenize" + b"3;a\nb\r\nabc\r\n0\r\n\r\n",
        CHUNKED % b"POST /tokenize" + b"3\r\nabcGET / HTTP/1.1\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\nTransfer-Encoding: \r\n chunked\r\n\r\n0\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\nTransfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        b"POST /tokenize HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\nContent-Length: +3\r\n\r\nabc",
        b"POST /tokenize HTTP/1.1\r\nContent-Length: 0x3\r\n\r\nabc",
        b"POST /tokenize HTTP/1.1\r\nContent-Length: 3, 4\r\n\r\nabc",
        b"POST /tokenize HTTP/1.1\r\nContent-Length: 3 4\r\n\r\nabc",
        b"POST /tokenize HTTP/1.1\r\nContent-Length:\r\n\r\nabc",
        b"GET /health HTTP/1.1\nHost: localhost\n\n",
        b"GET /health HTTP/1.1\r\nA\x00: b\r\n\r\n", b"GET /health HTTP/1.1\r\nA: b\x00c\r\n\r\n",
        b"GET  /health HTTP/1.1\r\n\r\n", b"GET /health\r\n\r\n", b"GET /he\x01alth HTTP/1.1\r\n\r\n", b"\r\n\r\n\r\n"]))


@attack(1, 431)
def many_headers(wire, rng):
    """A header of four bytes may take a hundred in memory."""
    begin = rng.choice([b"GET /health HTTP/1.1\r\n", b"POST /v1/completions HTTP/1.1\r\nContent-Length: 5\r\n"])
    return wire.status(begin + rng.choice([b"a:\r\n", b"a: b\r\n", b"Cookie:\r\n"]) * rng.choice([101, 1000, 2000]) + b"\r\n")


@attack(1, 200, 404)
def odd_but_right(wire, rng):
    return wire.status(rng.choice([
        b"GET http://localhost/health HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /health?" + b"a=b&" * 2000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + b"A: b\r\n" * 90 + b"\r\n",
        b"HEAD /health HTTP/1.1\r\nHost: localhost\r\n\r\n",
        CHUNKED % b"GET /health" + b"1\r\nx\r\n" * 3000 + b"0\r\nA: b\r\n\r\n",
        CHUNKED % b"GET /health" + b"1 ;x=y\r\nx\r\n0000000000000000\r\n\r\n"]))


@attack(1, 0, 400, 431, waits=True)
def noise(wire, rng):
    with wire.connect() as s:
        s.sendall(rng.randbytes(rng.randint(1, 2000)))
        s.settimeout(0.1)
        try:
            return status_of(s)
        except TimeoutError:  # the server waits for the end of a line
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


@attack(2, 200, 400, 413, *BUSY)
def costly_values(wire, rng):
    of_text, of_talk = ["numbers", "blanks", "escapes", "pairs", "halves", "biases", "stops"], ["kwargs", "tools", "roles", "parts", "calls", "arguments in arguments"]
    if rng.random() < 0.5:
        return wire.post(rng.choice(["/v1/completions", "/tokenize"]), made(rng.choice(of_text)))
    return wire.post(rng.choice(["/v1/chat/completions", "/tokenize"]), made(rng.choice(of_talk)))


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


@attack(3, 0, waits=True)
def unread_pipelines(wire, rng):
    """Hundreds of answers, none of which is read."""
    path = rng.choice([b"/", b"/openapi.json", b"/metrics", b"/v1/models"])
    with wire.connect(receive_buffer=4096) as s:
        s.settimeout(1)
        try:
            s.sendall(b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n" % path * 300)
            time.sleep(rng.uniform(0.2, 1))
        except (TimeoutError, BrokenPipeError, ConnectionResetError):
            pass
    return 0


@attack(3, 0, waits=True)
def refused_and_staying(wire, rng):
    """Refused on its headers, and the connection stays as long as it may: nothing of it should."""
    crowd = []
    try:
        for _ in range(20):
            crowd.append(wire.connect())
            crowd[-1].settimeout(1)
            crowd[-1].send(rng.choice([b"GET /health HTTP/1.1\r\n" + b"a:\r\n" * 3000, b"GET /health HTTP/1.1\r\nX: " + b"y" * 16300,
                                       b"POST /tokenize HTTP/1.1\r\nContent-Length: 9999999999\r\n\r\n" + b"z" * 12000]))
        time.sleep(rng.uniform(0.2, 1.5))
    except (TimeoutError, BrokenPipeError, ConnectionResetError):
        pass
    finally:
        for s in crowd:
            s.close()
    return 0


@attack(3, 0, 503, waits=True)
def bodies_that_come_slowly(wire, rng):
    """Many small bodies that are never whole."""
    crowd = []
    try:
        for _ in range(20):
            crowd.append(wire.connect())
            crowd[-1].settimeout(1)
            crowd[-1].send(b"POST /v1/completions HTTP/1.1\r\nContent-Length: 8000000\r\n\r\n" + b" " * 200000)
        for _ in range(5):
            time.sleep(0.1)
            for s in crowd:
                s.send(b" " * 10000)
    except (TimeoutError, BrokenPipeError, ConnectionResetError):
        pass
    finally:
        for s in crowd:
            s.close()
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
def half_closed(wire, rng):
    """Half-closed: nothing more is sent, but the answer is read; looks like a disconnect."""
    with wire.connect() as s:
        s.sendall(post("/v1/completions", plain(rng, stream=rng.random() < 0.5)))
        s.shutdown(socket.SHUT_WR)
        return status_of(s)


@attack(6, 0, waits=True)
def leaving_after_a_refusal(wire, rng):
    words = rng.choice([b"GET / HTTP/9\r\n\r\n" + b"x" * 5000, post("/nothing", b"y" * 20000), b"POST /tokenize HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n"])
    return wire.leave(words, len(words), rng.uniform(0, 0.05))


@attack(6, 0, waits=True)
def leaving_in_the_middle_of_a_chunk(wire, rng):
    body = json.dumps(plain(rng)).encode()
    words = CHUNKED % b"POST /v1/completions" + b"".join(b"1;x\r\n%c\r\n" % c for c in body) + b"0\r\nA: b\r\n\r\n"
    return wire.leave(words, rng.randint(0, len(words)), rng.uniform(0, 0.02))


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
    host = rng.choice([b"evil.example", b"localhost.evil.example", b"127.0.0.1.evil.example:8000", b"[::2]", b"0.0.0.0", b"localhost:x", b"a\x1b[2J",
                       b"localhost:99999", b"localhost:-1", b"127.0.0.256", b"127.1.evil", b"127.0.0.1@evil.example", b"[::1].evil.example", b"[::1", b"localhost/evil.example",
                       b"localhost evil.example", b"evil.example:80:localhost", b"xlocalhost", b"2130706433", b"[::ffff:10.0.0.1]"])
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
