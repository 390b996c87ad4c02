"""Models with files of an absurd structure: each load ends soon, with an answer or one sentence."""

import json
import os
import pathlib
import struct
import subprocess
import tempfile
import time

from millrace_server import FIXTURES, PROGRAM

MB = 1 << 20
PIPE = object()  # instead of a file's text


def gguf(*entries):
    """Metadata alone: key, type of its value, bytes."""
    def text(s):
        return struct.pack("<Q", len(s)) + s
    return b"GGUF" + struct.pack("<IQQ", 3, 0, len(entries)) + b"".join(text(k) + struct.pack("<I", kind) + value for k, kind, value in entries)


def array(kind, n, data):
    return struct.pack("<IQ", kind, n) + data


def absurd_models():
    own = json.loads((FIXTURES / "llama_gqa" / "config.json").read_text())
    tokenizer = json.loads((FIXTURES.parent / "text" / "smollm2.tokenizer.json").read_text())
    n_own = len(tokenizer["model"]["vocab"])

    def added(i, content, **more):
        return {"id": n_own + i, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True, **more}

    def model(config={}, **of_tokenizer):
        return {"config.json": json.dumps({**own, "vocab_size": n_own, **config}), "tokenizer.json": json.dumps({**tokenizer, **of_tokenizer})}

    def replace(pattern, content):
        return {"type": "Replace", "pattern": pattern, "content": content}

    nested = {"type": "Lowercase"}
    for _ in range(200):
        nested = {"type": "Sequence", "normalizers": [nested]}
    text = lambda **changes: {"config.json": json.dumps({**own, **changes})}
    yield "JSON in JSON", {"config.json": '{"model_type":' + "[" * 100000 + "]" * 100000 + "}"}
    for name, changes in [("head_dim", {"head_dim": 2**31 - 2}), ("heads", {"num_attention_heads": 2**62}), ("layers", {"num_hidden_layers": 2**31 - 1}),
                          ("vocab", {"vocab_size": 2**40}), ("context", {"max_position_embeddings": 2**63 - 1}), ("eps", {"rms_norm_eps": -1}),
                          ("rope", {"rope_parameters": {"rope_type": "linear", "factor": 1e10, "rope_theta": 1e4}}), ("negative", {"hidden_size": -40}),
                          ("words", {"model_type": "\x1b[2J" * 100000}), ("types", {"hidden_size": {"a": [1]}}), ("a long list", {"intermediate_size": [64] * 3 * MB}),
                          ("ends", {"eos_token_id": list(range(200000))}), ("widths", {"hidden_size": 2**20, "intermediate_size": 2**24, "num_hidden_layers": 4096})]:
        yield name, text(**changes)
    yield "nested normalizers", model(normalizer=nested)
    yield "doubling normalizers", model(normalizer={"type": "Sequence", "normalizers": [replace({"String": "a"}, "aa")] * 200})
    yield "an added token", model({"vocab_size": n_own + 1}, added_tokens=tokenizer["added_tokens"] + [added(0, "x" * (2 * MB))])
    yield "added tokens that grow", model(normalizer={"type": "Prepend", "prepend": "x" * 60000}, added_tokens=[added(i, f"t{i}", normalized=True) for i in range(50000)])
    yield "added tokens that take long", model(normalizer=replace({"Regex": "a*(?=c)"}, ""), added_tokens=[added(i, "a" * 990 + f"dc{i}", normalized=True) for i in range(300)])
    yield "patterns", model(pre_tokenizer={"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": "(a|aa)+c" * 4000}, "behavior": "Isolated"}] * 200})
    yield "decoders", model(decoder={"type": "Sequence", "decoders": [replace({"String": "a"}, "a" * 1000)] * 60 + [tokenizer["decoder"]]})
    yield "merges", model(model={**tokenizer["model"], "merges": [["a", "b" * 5000]] * 1000})
    yield "a template that is a pipe", {**model(), "chat_template.jinja": PIPE}
    yield "a tokenizer that is a pipe", {**model(), "tokenizer.json": PIPE}
    yield "a configuration that is a pipe", {**model(), "config.json": PIPE}
    yield "a deep template", {**model(), "chat_template.jinja": "{{ " + "(" * 100000}
    yield "a long template", {**model(), "chat_template.jinja": "{{ 1 }}" * (3 * MB)}
    yield "a list of numbers", {"model.gguf": gguf((b"general.architecture", 8, struct.pack("<Q", 5) + b"llama"), (b"llama.attention.head_count_kv", 9, array(0, 9 * MB, bytes(9 * MB))))}
    yield "a list of strings", {"model.gguf": gguf((b"a", 9, array(8, 6 * MB, bytes(48 * MB))))}
    yield "a list of lists", {"model.gguf": gguf((b"a", 9, array(9, 5 * MB, bytes(60 * MB))))}
    yield "lists in lists", {"model.gguf": gguf((b"a", 9, array(9, 1, b"") * 20000))}


def write(folder, files):
    for name, content in files.items():
        if content is PIPE:
            os.mkfifo(folder / name)
        else:
            (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def try_files(wrong, slow):
    """How many there are, and which took longest: its name and seconds."""
    slowest, n = ("", 0.0), 0
    with tempfile.TemporaryDirectory() as folder:
        for name, files in absurd_models():
            model = pathlib.Path(folder) / str(n)
            model.mkdir()
            write(model, files)
            command = [PROGRAM, "generate", model, "--random-weights", "1", "-p", "a" * 1000, "--max-tokens", "1"]
            begin = time.monotonic()
            try:
                done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=120 * slow, text=True, errors="replace")
                said = done.stderr.strip().splitlines()
                if done.returncode not in (0, 1) or (done.returncode == 1 and (len(said) != 1 or len(said[0]) > 3000 or not said[0].isprintable())):
                    wrong.append(f"the model '{name}': {done.returncode} {done.stderr[:500]}")
            except subprocess.TimeoutExpired:
                wrong.append(f"the model '{name}' is not refused in time")
            slowest = max(slowest, (name, time.monotonic() - begin), key=lambda x: x[1])
            n += 1
    return n, slowest
