"""Large bodies of hostile requests, by name."""

import functools
import json

TALK = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}


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
        "numbers": lambda: b'{"prompt":[' + b"1" * million + b"]}",
        "blanks": lambda: b'{"prompt":[1]' + b" " * (2 * million) + b',"max_tokens":1}',
        "escapes": lambda: b'{"prompt":"' + b"\\u0000" * (million // 6) + b'"}',
        "pairs": lambda: b'{"prompt":"' + b"\\ud83d\\ude00" * (million // 12) + b'"}',
        "halves": lambda: b'{"prompt":"' + b"\\ud83d" * (million // 6) + b'"}',
        "kwargs": lambda: json.dumps({**TALK, "chat_template_kwargs": {f"k{i}": {f"l{j}": 0 for j in range(20)} for i in range(4000)}}).encode(),
        "tools": lambda: json.dumps({**TALK, "tools": [{"function": {"name": f"f{i}", "parameters": {"a": [[[[]]]] * 50}}} for i in range(1024)]}).encode(),
        "biases": lambda: json.dumps({"prompt": [1], "logit_bias": {str(i): i % 100 for i in range(4000)}}).encode(),
        "stops": lambda: json.dumps({"prompt": [1], "stop": ["a" * million] * 4}).encode(),
        "roles": lambda: json.dumps({"messages": [{"role": "r" * 100000, "content": "x"}] * 40}).encode(),
        "parts": lambda: json.dumps({"messages": [{"role": "user", "content": [{"type": "text", "text": "ab"}] * 60000}]}).encode(),
        "calls": lambda: json.dumps({"messages": [{"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}] * 60000}]}).encode(),
        "arguments in arguments": lambda: json.dumps({"messages": [{"role": "assistant", "content": "", "tool_calls": [
            {"function": {"name": "f", "arguments": "[" * million}}]}]}).encode(),
        "tokens": lambda: json.dumps({"tokens": [599] * 400000}).encode(),
        "arguments": lambda: json.dumps({"messages": [{"role": "assistant", "content": "", "tool_calls": [
            {"function": {"name": "f", "arguments": json.dumps({"a": [{}] * 90000})}}] * 8}]}).encode(),
        "answers": lambda: json.dumps({"prompt": [[1]] * 256, "n": 4, "max_tokens": 2, "logit_bias": {str(i): 1 for i in range(600)}}).encode(),
        "too many answers": lambda: json.dumps({"prompt": [[1]] * 256, "n": 64, "max_tokens": 1}).encode(),
        "a little less": lambda: b"POST /v1/completions HTTP/1.1\r\nContent-Length: 1048500\r\n\r\n" + b" " * (million - 4096),
        "half a body": lambda: b"POST /v1/completions HTTP/1.1\r\nContent-Length: 8000001\r\n\r\n" + b" " * 4 * million,
        "half a chunk": lambda: b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n700000\r\n" + b" " * 4 * million,
    }[name]()
