"""One measurement of llama.cpp in a process of its own, printed as JSON. llama_cpp.py starts it in the peer's environment
with `python -I`: without that, `import llama_cpp` would find the neighbouring script.

Only llama_decode is timed: neither tokenizing nor the choice of the next token is charged to it. One untimed pass of each
workload comes first (it maps the weights and starts the threads), as llama-bench does.
"""

import argparse
import ctypes
import json
import random
import time

import llama_cpp as lib
import numpy as np


def status_bytes(key):
    """A field of /proc/self/status: VmRSS now, VmHWM at most so far, RssFile: the part that is pages of mapped files."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(key + ":"))


def open_model(args):
    model_params = lib.llama_model_default_params()
    model_params.use_mmap = True
    model_params.n_gpu_layers = 0
    model = lib.llama_model_load_from_file(args.model.encode(), model_params)
    params = lib.llama_context_default_params()
    params.n_ctx = args.prefill + args.decode
    params.n_batch = params.n_ubatch = args.prefill
    params.n_threads = params.n_threads_batch = args.threads
    params.flash_attn_type = 1 if args.flash == "on" else 0
    params.no_perf = True
    return model, lib.llama_init_from_model(model, params)


def step(context, tokens):
    """Seconds for one llama_decode of these tokens, logits of the last one only."""
    array = (lib.llama_token * len(tokens))(*tokens)
    batch = lib.llama_batch_get_one(array, len(tokens))
    begin = time.perf_counter()
    status = lib.llama_decode(context, batch)
    lib.llama_synchronize(context)
    seconds = time.perf_counter() - begin
    if status != 0:
        raise SystemExit(f"llama_decode of {len(tokens)} tokens returned {status}")
    return seconds


def prefill(context, n_tokens, n_vocab):
    lib.llama_memory_clear(lib.llama_get_memory(context), True)
    return step(context, random.Random(1).choices(range(n_vocab), k=n_tokens))


def decode(context, n_tokens, n_vocab):
    """Greedy from an empty context, one token a step, not stopping at end-of-text."""
    lib.llama_memory_clear(lib.llama_get_memory(context), True)
    token, seconds = 1, 0.0
    for _ in range(n_tokens):
        seconds += step(context, [token])
        logits = np.ctypeslib.as_array(lib.llama_get_logits_ith(context, -1), (n_vocab,))
        token = int(logits.argmax())
    return seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--prefill", type=int, default=512)
    parser.add_argument("--decode", type=int, default=128)
    parser.add_argument("--flash", choices=["on", "off"], default="on")
    parser.add_argument("--repeat", type=int, default=1, help="timed passes in this process; the best counts")
    args = parser.parse_args()

    silent = lib.llama_log_callback(lambda level, text, data: None)
    lib.llama_log_set(silent, ctypes.c_void_p(0))
    lib.llama_backend_init()
    interpreter, modules = status_bytes("VmRSS"), status_bytes("RssFile")  # Python's own, not llama.cpp's
    model, context = open_model(args)
    n_vocab = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))

    prefill(context, args.prefill, n_vocab)
    decode(context, min(args.decode, 8), n_vocab)
    prefill_s = min(prefill(context, args.prefill, n_vocab) for _ in range(args.repeat))
    decode_s = min(decode(context, args.decode, n_vocab) for _ in range(args.repeat))
    print(json.dumps({
        "prefill_tokens_per_s": args.prefill / prefill_s,
        "decode_tokens_per_s": args.decode / decode_s,
        "peak_bytes": status_bytes("VmHWM") - interpreter,
        "interpreter_bytes": interpreter,
        "mapped_file_bytes": status_bytes("RssFile") - modules,
        "flash": args.flash,
        "version": lib.__version__,
        "system": lib.llama_print_system_info().decode().strip(),
    }))


if __name__ == "__main__":
    main()
