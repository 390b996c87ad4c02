"""Makes one GGUF fixture: model.gguf (a tiny Llama, Qwen2 or Qwen3 with a tokenizer) and what transformers computes from it.

transformers reads the file itself and dequantizes it to f32; it must agree with the model that the file was written from.
"""

import dataclasses
import shutil
from typing import Callable

import gguf
import torch
from gguf import GGMLQuantizationType as Type
from transformers import AutoConfig, AutoModelForCausalLM

from fixture import FULL, ROOT, choose_prompt, close, evaluate, full_logits, random_weights, write_expected

CHATML = (
    "{% for message in messages %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["Ġ t", "h e", "Ġt he", "i n"]
VOCAB = len(SPECIAL) + 256 + len(MERGES)


@dataclasses.dataclass
class GgufFixture:
    make: Callable  # () -> transformers config, vocab_size VOCAB, rows of all matrices multiples of 32
    matrix: Type  # of the matrices
    embedding: Type  # of token_embd and output
    prompt: int = 40
    new: int = 16
    seed: int = 1


def byte_alphabet():
    """The 256 characters that stand for bytes in byte-level BPE (GPT-2), in the order of GPT-2's vocabulary."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in printable]
    return [chr(b) for b in printable] + [chr(256 + i) for i in range(len(rest))]


def permute(w, heads):
    """Rotary pairs (i, i + d/2) of each head become neighbours (2i, 2i + 1), as llama.cpp stores q and k of Llama."""
    return w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name):
    if name in NAMES:
        return NAMES[name]
    _, _, layer, part = name.split(".", 3)
    part, kind = part.rsplit(".", 1)
    return f"blk.{layer}.{NAMES[part]}.{kind}"


def write_gguf(path, model, entry):
    """Writes the file and rounds the model's weights to what the file holds."""
    c = model.config
    w = gguf.GGUFWriter(path, c.model_type)
    w.add_type("model")
    w.add_name(path.parent.name)
    w.add_block_count(c.num_hidden_layers)
    w.add_context_length(c.max_position_embeddings)
    w.add_embedding_length(c.hidden_size)
    w.add_feed_forward_length(c.intermediate_size)
    w.add_head_count(c.num_attention_heads)
    w.add_head_count_kv(c.num_key_value_heads)
    w.add_layer_norm_rms_eps(c.rms_norm_eps)
    w.add_rope_freq_base(c.rope_parameters["rope_theta"])
    head_dim = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    if c.model_type == "llama":
        w.add_rope_dimension_count(head_dim)
        w.add_vocab_size(c.vocab_size)
    if c.model_type == "qwen3":
        w.add_key_length(head_dim)
        w.add_value_length(head_dim)
    w.add_quantization_version(gguf.GGML_QUANT_VERSION)

    merged = [m.replace(" ", "") for m in MERGES]
    tokens = SPECIAL + byte_alphabet() + merged
    assert len(tokens) == c.vocab_size == VOCAB
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre({"llama": "smollm"}.get(c.model_type, "qwen2"))
    w.add_token_list(tokens)
    w.add_token_types([gguf.TokenType.CONTROL] * len(SPECIAL) + [gguf.TokenType.NORMAL] * (len(tokens) - len(SPECIAL)))
    w.add_token_merges(MERGES)
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    w.add_unk_token_id(0)
    w.add_add_bos_token(False)
    w.add_chat_template(CHATML)

    for name, p in model.named_parameters():
        data = p.detach().numpy()
        kind = Type.F32
        if data.ndim == 2:
            kind = entry.embedding if name in ("model.embed_tokens.weight", "lm_head.weight") else entry.matrix
        heads = {"q_proj": c.num_attention_heads, "k_proj": c.num_key_value_heads}.get(name.split(".")[-2])
        permuted = c.model_type == "llama" and heads is not None
        stored = gguf.quants.quantize(permute(data, heads) if permuted else data, kind)
        w.add_tensor(gguf_name(name), stored, raw_dtype=kind)
        rounded = gguf.quants.dequantize(gguf.quants.quantize(data, kind), kind)  # blocks lie within rows: order is free
        p.data.copy_(torch.from_numpy(rounded.copy()))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def make_gguf(name, entry):
    folder = ROOT / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    model = AutoModelForCausalLM.from_config(entry.make(), attn_implementation="eager").eval()
    random_weights(model, entry.seed, torch.float32)
    write_gguf(folder / "model.gguf", model, entry)
    read = AutoConfig.from_pretrained(folder, gguf_file="model.gguf")
    if read.model_type == "qwen3":
        read.head_dim = model.config.head_dim  # transformers does not read key_length of this architecture
    loaded = AutoModelForCausalLM.from_pretrained(folder, gguf_file="model.gguf", config=read, dtype=torch.float32,
                                                  attn_implementation="eager").eval()
    loaded.generation_config.eos_token_id = None
    prompt = choose_prompt(loaded, entry.prompt, entry.new, VOCAB)
    tokens, logits = evaluate(loaded, prompt, entry.new, False)
    assert close(full_logits(model, prompt + tokens), logits), "the file differs from the model that it was written from"
    write_expected(folder, prompt, tokens, logits, FULL)
