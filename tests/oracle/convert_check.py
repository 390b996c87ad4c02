"""Holds what `millrace convert` writes against other readers: the `gguf` package reads our GGUF files, `safetensors` and transformers our
directories, and transformers computes the same logits from them as from the original.

    python tests/oracle/convert_check.py build/release/millrace [fixture ...]

Run in an environment with requirements.txt. For every fixture: HF -> GGUF (read with GGUFReader: names, shapes and values of the twin that the
`gguf` package wrote, where there is one) -> HF (loaded with transformers: logits of the fixture).
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import gguf
import numpy as np
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from fixture import ROOT
from gguf_twins import TWINS


def convert(program, source, target, *options):
    subprocess.run([program, "convert", source, target, *options], check=True)
    return target


def values(tensor):
    return gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float64)


def against_twin(name, file):
    ours = {t.name: t for t in gguf.GGUFReader(file).tensors}
    twin = {t.name: t for t in gguf.GGUFReader(ROOT / f"gguf_{name}" / "model.gguf").tensors}
    assert ours.keys() == twin.keys(), ours.keys() ^ twin.keys()
    worst = 0.0
    for key, theirs in twin.items():
        assert list(ours[key].shape) == list(theirs.shape), key
        worst = max(worst, float(np.abs(values(ours[key]) - values(theirs)).max()))
    assert worst < 1e-6, worst
    return worst


def logits_of(folder, expected):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        return model(torch.tensor([expected["prompt"]])).logits[0].float().numpy()


def check(program, name, scratch):
    source = ROOT / name
    expected = json.loads((source / "expected.json").read_text())
    file = convert(program, source, scratch / f"{name}.gguf")
    twin = against_twin(name, file) if name in TWINS and name != "llama_rope_longrope" else None
    back = convert(program, file, scratch / name)
    assert load_file(back / "model.safetensors")
    rows = len(expected["prompt"])
    want = np.fromfile(source / "logits.f32", dtype=np.float32).reshape(-1, expected["vocab"])[:rows]
    off = float(np.abs(logits_of(back, expected) - want).max()) / expected["max_abs_logit"]
    assert off < 1e-4, off
    print(f"{name:28} twin {'-' if twin is None else f'{twin:.1e}':8} transformers {off:.1e}")


def main():
    program, *names = sys.argv[1:]
    names = names or ["llama_gqa", "llama_bf16", "llama_bias", "llama_tied", "llama_rope_linear", "llama_rope_llama3", "llama_rope_yarn", "qwen2",
                      "qwen3", "mamba", *TWINS]
    with tempfile.TemporaryDirectory() as scratch:
        for name in names:
            check(program, name, Path(scratch))


if __name__ == "__main__":
    main()
