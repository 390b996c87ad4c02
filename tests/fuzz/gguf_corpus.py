"""Writes inputs of the fuzzers that are GGUF files: every family's metadata with sizes as small as they go, and a whole model with K-quants.

    python tests/fuzz/gguf_corpus.py

By the format's specification alone; what a family's keys are called is llama.cpp's word.
"""

import pathlib
import random
import struct

CORPUS = pathlib.Path(__file__).parent / "corpus"
F32, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, MXFP4 = 0, 8, 10, 11, 12, 13, 14, 20, 23, 39
BLOCKS = {F32: (1, 4), Q8_0: (32, 34), Q2_K: (256, 84), Q3_K: (256, 110), Q4_K: (256, 144), Q5_K: (256, 176), Q6_K: (256, 210), IQ4_NL: (32, 18),
          IQ4_XS: (256, 136), MXFP4: (32, 17)}


def text(s):
    return struct.pack("<Q", len(s)) + s.encode()


def value(v):
    """The type's number and the bytes."""
    if isinstance(v, bool):
        return 7, struct.pack("<?", v)
    if isinstance(v, int):
        return 4, struct.pack("<I", v)
    if isinstance(v, float):
        return 6, struct.pack("<f", v)
    if isinstance(v, str):
        return 8, text(v)
    kind = value(v[0])[0]
    return 9, struct.pack("<IQ", kind, len(v)) + b"".join(value(x)[1] for x in v)


def gguf(metadata, tensors, fill=random.Random(1)):
    """Tensors: name -> (dimensions as in the file, innermost first; type)."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    for key, v in metadata.items():
        kind, data = value(v)
        head += text(key) + struct.pack("<I", kind) + data
    at, bodies = 0, b""
    for name, (shape, kind) in tensors.items():
        elements, size = BLOCKS[kind]
        n = 1
        for x in shape:
            n *= x
        head += text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape) + struct.pack("<IQ", kind, at)
        # Small numbers: 0.5 in f32, and blocks whose scales are not huge.
        data = struct.pack("<f", 0.5) * n if kind == F32 else bytes(fill.randrange(0, 0x30) for _ in range(n // elements * size))
        data += b"\0" * (-len(data) % 32)
        bodies += data
        at += len(data)
    return head + b"\0" * (-len(head) % 32) + bodies


def family(arch, more, tensors={}, layers=2):
    metadata = {"general.architecture": arch, f"{arch}.block_count": layers, f"{arch}.context_length": 64, f"{arch}.embedding_length": 8,
                f"{arch}.feed_forward_length": 8, f"{arch}.attention.head_count": 2, f"{arch}.attention.head_count_kv": 1,
                f"{arch}.attention.layer_norm_rms_epsilon": 1e-5, **{f"{arch}.{k}": v for k, v in more.items()}}
    return gguf(metadata, {"token_embd.weight": ([8, 4], F32), **tensors})


FAMILIES = {
    "qwen3": family("qwen3", {"attention.key_length": 4, "rope.freq_base": 1e6}),
    "qwen3moe": family("qwen3moe", {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 8, "attention.key_length": 4}),
    "mixtral": family("llama", {"expert_count": 4, "expert_used_count": 2, "rope.dimension_count": 4}),
    "gemma2": family("gemma2", {"attention.key_length": 4, "attention.sliding_window": 4, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}),
    "gemma3": family("gemma3", {"attention.key_length": 4, "attention.sliding_window": 4, "rope.scaling.type": "linear", "rope.scaling.factor": 8.0,
                                "attention.sliding_window_pattern": 2}),
    "gemma3n": family("gemma3n", {"attention.key_length": 4, "attention.sliding_window": 4, "attention.sliding_window_pattern": [True, True, False, True, True, False],
                                  "attention.shared_kv_layers": 3, "altup.num_inputs": 4, "altup.active_idx": 0, "embedding_length_per_layer_input": 4,
                                  "activation_sparsity_scale": [1.6, 1.6, float("-inf"), 0.0, 0.0, 0.0], "feed_forward_length": [8] * 6},
                      {"blk.0.laurel_l.weight": ([8, 2], F32), "per_layer_token_embd.weight": ([24, 4], F32)}, layers=6),
    "granite": family("granite", {"attention.scale": 0.25, "embedding_scale": 12.0, "residual_scale": 0.22, "logit_scale": 8.0}),
    "nemotron": family("nemotron", {"attention.layer_norm_epsilon": 1e-5, "rope.dimension_count": 2}),
    "starcoder2": family("starcoder2", {"attention.layer_norm_epsilon": 1e-5}, {"blk.0.attn_q.bias": ([8], F32), "blk.0.ffn_up.bias": ([8], F32)}),
    "phi3": family("phi3", {"rope.scaling.original_context_length": 32, "rope.scaling.attn_factor": 1.1, "rope.dimension_count": 4},
                   {"rope_factors_short.weight": ([2], F32), "rope_factors_long.weight": ([2], F32)}),
    "smollm3": family("smollm3", {"rope.freq_base": 5e6}, layers=4),
    "lfm2": family("lfm2", {"attention.head_count_kv": [0, 1], "shortconv.l_cache": 3}),
    "mamba2": family("mamba2", {"ssm.conv_kernel": 4, "ssm.inner_size": 16, "ssm.state_size": 4, "ssm.time_step_rank": 4, "ssm.group_count": 1}),
    "jamba": family("jamba", {"attention.head_count_kv": [0, 1], "ssm.conv_kernel": 4, "ssm.inner_size": 16, "ssm.state_size": 4, "ssm.time_step_rank": 2,
                              "expert_count": 2, "expert_used_count": 1}),
    "llama_kquants": gguf({"general.architecture": "llama", "llama.block_count": 1, "llama.context_length": 64, "llama.embedding_length": 256,
                           "llama.feed_forward_length": 2, "llama.attention.head_count": 1, "llama.attention.key_length": 2, "llama.rope.dimension_count": 2,
                           "llama.attention.layer_norm_rms_epsilon": 1e-5}, {"token_embd.weight": ([256, 4], Q4_K), "output.weight": ([256, 4], Q6_K)}),
}


def section(letter, data):
    return letter.encode() + struct.pack("<I", len(data))[:3] + data


def whole(kinds):
    """A Llama of one layer whose rows are one block long: the matrices that a width of 256 goes into are quantized, each in its own way."""
    q, k, v, gate, up, table = kinds
    metadata = {"general.architecture": "llama", "llama.block_count": 1, "llama.context_length": 32, "llama.embedding_length": 256, "llama.feed_forward_length": 2,
                "llama.attention.head_count": 1, "llama.attention.head_count_kv": 1, "llama.attention.key_length": 2, "llama.attention.value_length": 2,
                "llama.rope.dimension_count": 2, "llama.attention.layer_norm_rms_epsilon": 1e-5}
    return gguf(metadata, {
        "token_embd.weight": ([256, 3], table), "output_norm.weight": ([256], F32), "blk.0.attn_norm.weight": ([256], F32), "blk.0.ffn_norm.weight": ([256], F32),
        "blk.0.attn_q.weight": ([256, 2], q), "blk.0.attn_k.weight": ([256, 2], k), "blk.0.attn_v.weight": ([256, 2], v),
        "blk.0.attn_output.weight": ([2, 256], F32), "blk.0.ffn_gate.weight": ([256, 2], gate), "blk.0.ffn_up.weight": ([256, 2], up),
        "blk.0.ffn_down.weight": ([2, 256], F32)})


def main():
    for name, data in FAMILIES.items():
        assert len(data) < 3072, (name, len(data))
        (CORPUS / "gguf" / name).write_bytes(data)
    for name, kinds in {"gguf_kquants": (Q4_K, Q5_K, Q6_K, Q2_K, Q3_K, Q4_K), "gguf_others": (IQ4_XS, IQ4_NL, MXFP4, Q8_0, Q6_K, Q8_0)}.items():
        data = section("g", whole(kinds))
        assert len(data) < 16384, (name, len(data))
        (CORPUS / "model" / name).write_bytes(data)


if __name__ == "__main__":
    main()
