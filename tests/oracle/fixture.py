"""Makes one fixture directory: a tiny random checkpoint on disk, and what transformers computes from it.

Expectations are always computed from the files as a reader finds them: saved, loaded again in f32, eager attention.
expected.json  prompt, greedy (token ids), rows, vocab, how the logits came about, min_margin
logits.f32     little-endian float32 [rows, vocab], rows = len(prompt) + len(greedy); row i is the prediction after token i
"""

import copy
import dataclasses
import json
import logging
import shutil
import warnings
from pathlib import Path
from typing import Callable

import torch
import transformers
from transformers import AutoModelForCausalLM

warnings.filterwarnings("ignore")
transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
logging.disable(logging.WARNING)
torch.set_num_threads(1)  # one summation order on every machine with the same instruction set

ROOT = Path(__file__).resolve().parent.parent / "fixtures" / "models"

FULL = "one forward over prompt + greedy without cache"
STEPS = "rows of the prompt: one forward over the prompt alone; rows of greedy: one token at a time with the cache"


@dataclasses.dataclass
class Fixture:
    make: Callable  # () -> transformers config
    prompt: int = 40  # tokens
    new: int = 20
    seed: int = 1  # of the weights: equal seed and shapes give equal weights
    embedding: float = 0  # their standard deviation; 0: 0.5, tied 0.2 (else a tied model echoes its input)
    dtype: torch.dtype = torch.float32  # as stored
    shard: str = "1GB"
    length_dependent: bool = False  # rope depends on the length of the forward: logits come from the cached run
    edit: Callable | None = None  # config.json (dict) -> dict, after saving


def random_weights(model, seed, dtype, embedding=0):
    """Matrices 1/sqrt(fan in), so that attention is not flat; biases and norms off their neutral values; rounded to dtype."""
    g = torch.Generator().manual_seed(seed)
    embedding = embedding or (0.2 if model.config.tie_word_embeddings else 0.5)
    buffers = [(name, b) for name, b in model.named_buffers() if name in model.state_dict()]
    for name, p in sorted(model.named_parameters()) + buffers:
        noise = torch.randn(p.shape, generator=g)
        if "A_log" in name or name.endswith(".D"):
            value = p.data + 0.1 * noise
        elif "dt_proj.bias" in name or "dt_bias" in name:
            value = -1 + 0.5 * noise  # softplus of it about 0.3: the state both keeps and forgets
        elif "embed" in name and p.dim() == 2 and "proj" not in name:
            value = embedding * noise
        elif "conv1d.weight" in name:
            value = 0.4 * noise
        elif p.dim() >= 2:
            value = noise / p.shape[-1] ** 0.5
        elif "norm" in name:
            value = p.data + 0.1 * noise  # neutral is 1, or 0 where the norm adds 1
        else:
            value = p.data + 0.1 * noise
        p.data.copy_(value.to(dtype))


# A copy for every run: dynamic rope remembers the longest forward that a model object has seen.
@torch.no_grad()
def full_logits(model, ids):
    return copy.deepcopy(model)(torch.tensor([ids]), use_cache=False).logits[0].float()


@torch.no_grad()
def generated(model, prompt, n):
    """Greedy with the cache by the library's own loop: (tokens [n], logits of the n choices [n, vocab])."""
    ids = torch.tensor([prompt])
    out = copy.deepcopy(model).generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=n, min_new_tokens=n,
                                        do_sample=False, output_logits=True, return_dict_in_generate=True)
    return out.sequences[0, len(prompt):].tolist(), torch.cat(out.logits).float()


def recomputed(model, prompt, n):
    ids = list(prompt)
    for _ in range(n):
        ids.append(int(full_logits(model, ids)[-1].argmax()))
    return ids[len(prompt):]


def close(a, b, tolerance=2e-5):
    return float((a - b).abs().max()) <= tolerance * float(b.abs().max())


def evaluate(model, prompt, n, length_dependent):
    """Greedy tokens and logits by cache, by recompute and by generate(); they must agree."""
    tokens, logits = generated(model, prompt, n + 1)  # n + 1: its last logits are the row after the last token
    tokens = tokens[:n]
    prefill = full_logits(model, prompt)
    steps = torch.cat([prefill[:-1], logits])
    if length_dependent:
        return tokens, steps
    full = full_logits(model, prompt + tokens)
    assert close(steps, full), f"cached and full logits differ by {(steps - full).abs().max()}"
    assert recomputed(model, prompt, n) == tokens, "greedy by recompute differs from greedy with the cache"
    return tokens, full


def margins(logits, n):
    """Top-2 distance of every greedy choice, as a share of the largest |logit|."""
    top = logits[-n - 1:-1].topk(2).values
    return (top[:, 0] - top[:, 1]) / logits.abs().max()


def choose_prompt(model, length, n, vocab):
    """The first of some random prompts whose greedy choices are all clear and not one token over and over."""
    best = None
    for seed in range(60):
        g = torch.Generator().manual_seed(1000 + seed)
        prompt = torch.randint(0, vocab, (length,), generator=g).tolist()
        tokens, logits = generated(model, prompt, n + 1)
        top = logits[:n].topk(2).values
        margin = float((top[:, 0] - top[:, 1]).min() / logits.abs().max())
        score = (len(set(tokens[:n])) >= n // 3) + (margin > 1.2e-2), margin
        if best is None or score > best[0]:
            best = score, prompt
        if score[0] == 2:
            break
    return best[1]


def write_expected(folder, prompt, tokens, logits, how, extra=None):
    rows, vocab = logits.shape
    assert rows == len(prompt) + len(tokens) and torch.isfinite(logits).all()
    logits.contiguous().numpy().astype("<f4").tofile(folder / "logits.f32")
    expected = {
        "oracle": f"transformers {transformers.__version__}, torch {torch.__version__}, f32, eager attention",
        "n_prompt": len(prompt),
        "n_greedy": len(tokens),
        "rows": rows,
        "vocab": vocab,
        "logits": how,
        "max_abs_logit": float(logits.abs().max()),
        "min_margin": float(margins(logits, len(tokens)).min()),
        **(extra or {}),
        "prompt": prompt,
        "greedy": tokens,
    }
    (folder / "expected.json").write_text(json.dumps(expected) + "\n")
    size = sum(f.stat().st_size for f in folder.iterdir())
    print(f"{folder.name:28} {size / 1024:6.0f} KiB  margin {expected['min_margin']:.3f}  max {expected['max_abs_logit']:.1f}  "
          f"{len(set(tokens))} distinct")


def load(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def make(name, fixture):
    folder = ROOT / name
    shutil.rmtree(folder, ignore_errors=True)
    torch.manual_seed(0)  # for parameters that the library itself initializes
    model = AutoModelForCausalLM.from_config(fixture.make(), attn_implementation="eager").eval()
    random_weights(model, fixture.seed, fixture.dtype, fixture.embedding)
    copy.deepcopy(model).to(fixture.dtype).save_pretrained(folder, max_shard_size=fixture.shard)
    (folder / "generation_config.json").unlink(missing_ok=True)
    if fixture.edit:
        path = folder / "config.json"
        path.write_text(json.dumps(fixture.edit(json.loads(path.read_text())), indent=2, sort_keys=True) + "\n")

    loaded = load(folder)
    vocab = loaded.config.get_text_config().vocab_size
    prompt = choose_prompt(loaded, fixture.prompt, fixture.new, vocab)
    tokens, logits = evaluate(loaded, prompt, fixture.new, fixture.length_dependent)
    assert close(full_logits(model, prompt), logits[:len(prompt)]), "the reloaded model differs from the saved one"
    write_expected(folder, prompt, tokens, logits, STEPS if fixture.length_dependent else FULL)
