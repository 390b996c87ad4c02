"""Writes tests/fixtures/models/smollm2/expected.json: what transformers computes in f32 from the default model's GGUF file.

    python tests/oracle/default_model.py SmolLM2-135M-Instruct.Q4_1.gguf [page_logits.f32]

The second argument, if given, receives the page's logits, little-endian float32 [tokens, vocabulary] (81 MB; not committed).

The tokenizer is built from the file's own vocabulary and merges with the tokenizers library.
"""

import hashlib
import json
import sys
from pathlib import Path

import torch
import transformers
from gguf import GGUFReader
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM

from fixture import ROOT, full_logits

FOLDER = ROOT / "smollm2"
MAX_NEW = 32
TOP = 5


def user(text):
    return [{"role": "user", "content": text}]


PROMPTS = [  # a list of messages goes through the chat template, a string is plain text
    user("What is the capital of France?"),
    user("Name the three primary colors."),
    user("Write a Python function that returns the sum of a list."),
    [{"role": "system", "content": "You answer in one short sentence."}, {"role": "user", "content": "Which planet is closest to the Sun?"}],
    user("What is 12 + 30?") + [{"role": "assistant", "content": "12 + 30 = 42."}] + user("And 42 + 8?"),
    "Once upon a time, in a small village by the river,",
    "The first 10 prime numbers are 2, 3, 5,",
    "for i in range(10):\n    print(",
    "Überraschung — naïve café 東京 🙂:",
    user("Translate 'good morning' into Spanish, Italian and German."),
]


def tokenizer_of(fields):
    tokens = fields["tokenizer.ggml.tokens"].contents()
    kinds = fields["tokenizer.ggml.token_type"].contents()
    merges = [tuple(m.split(" ")) for m in fields["tokenizer.ggml.merges"].contents()]
    assert fields["tokenizer.ggml.pre"].contents() == "smollm"
    t = Tokenizer(models.BPE(vocab={s: i for i, s in enumerate(tokens)}, merges=merges))
    t.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    t.decoder = decoders.ByteLevel()
    t.add_special_tokens([AddedToken(s, special=True, normalized=False) for s, k in zip(tokens, kinds) if k == 3])
    return t


def rounded(values):
    return [round(float(v), 5) for v in values]


@torch.no_grad()
def answer(model, ids, eos):
    """Greedy with the cache up to and including eos; the margin is the smallest top-2 distance in logits."""
    tokens, margin, cache, step = [], float("inf"), None, ids
    while len(tokens) < MAX_NEW and (not tokens or tokens[-1] != eos):
        out = model(torch.tensor([step]), past_key_values=cache, use_cache=True)
        cache, (first, second) = out.past_key_values, out.logits[0, -1].topk(2).values.tolist()
        margin = min(margin, first - second)
        tokens.append(int(out.logits[0, -1].argmax()))
        step = tokens[-1:]
    recompute = full_logits(model, ids + tokens)[len(ids) - 1:-1].argmax(-1).tolist()
    assert recompute == tokens, "greedy by recompute differs from greedy with the cache"
    return tokens, margin


def page_of(model, tokenizer, logits_file):
    ids = tokenizer.encode((FOLDER / "page.txt").read_text(encoding="utf-8")).ids
    logits = full_logits(model, ids)
    if logits_file:
        logits.numpy().astype("<f4").tofile(logits_file)
    logp = logits.double().log_softmax(-1)
    top = logp.topk(TOP)
    actual = logp[:-1].gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
    return {
        "about": "row i is the prediction after tokens[0..i]; logprobs[i] is that of tokens[i + 1]; natural logarithm",
        "file": "page.txt",
        "n": len(ids),
        "mean_nll": float(-actual.mean()),
        "tokens": ids,
        "logprobs": rounded(actual),
        "top_ids": top.indices.tolist(),
        "top_logprobs": [rounded(row) for row in top.values],
    }


def main():
    path = Path(sys.argv[1])
    fields = GGUFReader(path).fields
    tokenizer = tokenizer_of(fields)
    jinja = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    template = jinja.from_string(fields["tokenizer.chat_template"].contents())
    eos = fields["tokenizer.ggml.eos_token_id"].contents()
    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32,
                                                 attn_implementation="eager").eval()
    prompts = []
    for prompt in PROMPTS:
        chat = not isinstance(prompt, str)
        text = template.render(messages=prompt, add_generation_prompt=True) if chat else prompt
        ids = tokenizer.encode(text).ids
        tokens, margin = answer(model, ids, eos)
        prompts.append({
            **({"messages": prompt} if chat else {}), "text": text, "prompt": ids, "greedy": tokens,
            "answer": tokenizer.decode(tokens, skip_special_tokens=True), "min_margin": round(margin, 5),
        })
        print(f"{margin:.4f}  {prompts[-1]['answer']!r}")
    expected = {
        "oracle": f"transformers {transformers.__version__}, torch {torch.__version__}, weights dequantized to f32, eager attention",
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "eos": eos,
        "max_new": MAX_NEW,
        "about": "text is the prompt as tokenized (messages through the chat template); min_margin in logits",
        "prompts": prompts,
        "page": page_of(model, tokenizer, next(iter(sys.argv[2:]), None)),
    }
    print("page:", expected["page"]["n"], "tokens, mean negative log-probability", expected["page"]["mean_nll"])
    (FOLDER / "expected.json").write_text(json.dumps(expected, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
