"""Writes tests/fixtures/models: tiny random models and what transformers computes from them.

    python tests/oracle/models.py [name ...]

A model is one entry in MODELS. Run in an environment with requirements.txt; the result is the same on every run.
"""

import sys

import torch
from transformers import (
    FalconMambaConfig, Gemma2Config, Gemma3nTextConfig, Gemma3TextConfig, Gemma4TextConfig, GemmaConfig, GraniteConfig,
    JambaConfig, Lfm2Config, LlamaConfig, Mamba2Config, MambaConfig, MistralConfig, MixtralConfig, NemotronConfig, Phi3Config,
    Qwen2Config, Qwen3Config, Qwen3MoeConfig, SmolLM3Config, Starcoder2Config,
)

from fixture import Fixture, make
from gguf_fixture import VOCAB, GgufFixture, Type, make_gguf

NO_SPECIAL = dict(bos_token_id=None, eos_token_id=None, pad_token_id=None)


def config(cls, **changes):
    """-> () -> a config of about 30,000 parameters. Vocabulary and prompt lengths are odd on purpose."""
    base = dict(
        vocab_size=131, hidden_size=32, intermediate_size=72, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=256, tie_word_embeddings=False, **NO_SPECIAL,
    )
    base.update(changes)
    return lambda: cls(**{k: v for k, v in base.items() if v is not ...})


def rope(rope_type, **fields):
    """A Llama with a rope scaling; all of them have the same weights."""
    changes = {k: fields.pop(k) for k in ("max_position_embeddings", "rope_theta") if k in fields}
    theta = changes.pop("rope_theta", 10000.0)
    return config(LlamaConfig, **changes, rope_parameters=dict(rope_type=rope_type, rope_theta=theta, **fields))


def old_style(c):
    """config.json as transformers 4 wrote it: rope_theta and rope_scaling side by side, torch_dtype."""
    parameters = c.pop("rope_parameters")
    c["rope_theta"] = parameters.pop("rope_theta")
    c["rope_scaling"] = parameters
    c["torch_dtype"] = c.pop("dtype")
    c["transformers_version"] = "4.45.0"
    return c


def oldest_style(c):
    """As old_style, and the scaling is named by "type"."""
    c = old_style(c)
    c["rope_scaling"]["type"] = c["rope_scaling"].pop("rope_type")
    c.pop("head_dim")  # hidden_size / num_attention_heads
    return c


LLAMA3 = dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32)
LONG = dict(
    short_factor=[1.0, 1.05, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6], long_factor=[1.0, 1.5, 2.0, 3.0, 4.5, 6.0, 8.0, 11.0],
    original_max_position_embeddings=48, max_position_embeddings=192,
)
DYNAMIC = dict(factor=4.0, max_position_embeddings=48)

MODELS = {
    "llama_mha": Fixture(config(LlamaConfig, hidden_size=48, num_key_value_heads=4, head_dim=..., intermediate_size=56,
                                num_attention_heads=4)),
    "llama_gqa": Fixture(config(LlamaConfig, hidden_size=40, head_dim=24), prompt=75),
    "llama_mqa": Fixture(config(LlamaConfig, hidden_size=40, num_attention_heads=5, num_key_value_heads=1, head_dim=...)),
    "llama_bias": Fixture(config(LlamaConfig, attention_bias=True, mlp_bias=True)),
    "llama_tied": Fixture(config(LlamaConfig, tie_word_embeddings=True, rms_norm_eps=1e-5)),
    "llama_rope_linear": Fixture(rope("linear", factor=4.0), prompt=75),
    "llama_rope_dynamic": Fixture(rope("dynamic", **DYNAMIC), prompt=75, length_dependent=True),
    "llama_rope_dynamic_cross": Fixture(rope("dynamic", **DYNAMIC), prompt=37, new=24, length_dependent=True),
    "llama_rope_llama3": Fixture(rope("llama3", rope_theta=5e5, **LLAMA3), prompt=75),
    "llama_rope_yarn": Fixture(rope("yarn", factor=4.0, original_max_position_embeddings=64), prompt=75),
    "llama_rope_yarn_full": Fixture(rope("yarn", factor=4.0, original_max_position_embeddings=64, beta_fast=4.0,
                                         beta_slow=0.5, mscale=1.0, mscale_all_dim=0.8, truncate=False), prompt=75),
    "llama_rope_longrope": Fixture(rope("longrope", **LONG), prompt=75, length_dependent=True),
    "llama_rope_longrope_short": Fixture(rope("longrope", **LONG), prompt=23, new=16),
    "llama_old_config": Fixture(rope("llama3", rope_theta=5e5, **LLAMA3), prompt=75, edit=old_style),
    "llama_oldest_config": Fixture(config(LlamaConfig, head_dim=..., rope_parameters=dict(
        rope_type="linear", rope_theta=20000.0, factor=2.0)), edit=oldest_style),
    "llama_f16": Fixture(config(LlamaConfig), dtype=torch.float16, shard="40KB"),
    "llama_bf16": Fixture(config(LlamaConfig), dtype=torch.bfloat16, shard="40KB"),
    "smollm3": Fixture(config(SmolLM3Config, head_dim=..., num_hidden_layers=4, no_rope_layer_interval=2,
                              intermediate_size=48)),
    "qwen2": Fixture(config(Qwen2Config, head_dim=...)),
    "qwen2_window": Fixture(config(Qwen2Config, head_dim=..., use_sliding_window=True, sliding_window=24, max_window_layers=1),
                            prompt=75),
    "qwen3": Fixture(config(Qwen3Config, head_dim=24)),
    "mistral_window": Fixture(config(MistralConfig, sliding_window=24), prompt=75),
    "mamba": Fixture(lambda: MambaConfig(vocab_size=131, hidden_size=32, state_size=8, num_hidden_layers=3, expand=2,
                                         conv_kernel=4, time_step_rank=4, tie_word_embeddings=True, **NO_SPECIAL), prompt=75),
    "mamba_bias": Fixture(lambda: MambaConfig(vocab_size=131, hidden_size=24, state_size=5, num_hidden_layers=2, expand=3,
                                              conv_kernel=3, time_step_rank="auto", use_bias=True, use_conv_bias=False,
                                              tie_word_embeddings=False, **NO_SPECIAL)),
    "mamba2": Fixture(lambda: Mamba2Config(vocab_size=131, hidden_size=32, state_size=12, num_hidden_layers=2, expand=2,
                                           num_heads=4, head_dim=16, n_groups=2, conv_kernel=4, chunk_size=8, **NO_SPECIAL),
                      prompt=75),
    "falcon_mamba": Fixture(lambda: FalconMambaConfig(vocab_size=131, hidden_size=32, state_size=8, num_hidden_layers=2, expand=2,
                                                      conv_kernel=4, time_step_rank=4, tie_word_embeddings=False, **NO_SPECIAL)),
    "jamba": Fixture(config(JambaConfig, head_dim=..., num_hidden_layers=4, intermediate_size=24, num_experts=4,
                            num_experts_per_tok=2, expert_layer_period=2, expert_layer_offset=1, attn_layer_period=4,
                            attn_layer_offset=2, mamba_d_state=8, mamba_d_conv=4, mamba_expand=2, mamba_dt_rank=4,
                            use_mamba_kernels=False), prompt=75),
    "lfm2": Fixture(config(Lfm2Config, head_dim=..., num_hidden_layers=3, layer_types=["conv", "full_attention", "conv"],
                           conv_L_cache=3, intermediate_size=60, block_multiple_of=8, block_ffn_dim_multiplier=1.3,
                           tie_word_embeddings=True), prompt=75),
    "lfm2_bias": Fixture(config(Lfm2Config, head_dim=..., num_hidden_layers=2, layer_types=["full_attention", "conv"],
                                conv_L_cache=4, conv_bias=True, block_auto_adjust_ff_dim=False)),
    "mixtral": Fixture(config(MixtralConfig, intermediate_size=40, num_local_experts=4, num_experts_per_tok=2)),
    "gemma": Fixture(config(GemmaConfig, tie_word_embeddings=True), embedding=0.03, dtype=torch.bfloat16),
    "gemma2": Fixture(config(Gemma2Config, query_pre_attn_scalar=24, sliding_window=24, attn_logit_softcapping=1.0,
                             final_logit_softcapping=0.5, tie_word_embeddings=True), prompt=75, embedding=0.03),
    "gemma3": Fixture(config(Gemma3TextConfig, query_pre_attn_scalar=24, sliding_window=24, num_hidden_layers=3,
                             intermediate_size=48, layer_types=["sliding_attention", "sliding_attention", "full_attention"],
                             tie_word_embeddings=True), prompt=75, embedding=0.03),
    "gemma3n": Fixture(config(Gemma3nTextConfig, sliding_window=24, num_hidden_layers=4, intermediate_size=32,
                              layer_types=["sliding_attention", "full_attention"] * 2, num_kv_shared_layers=2,
                              vocab_size_per_layer_input=131, hidden_size_per_layer_input=8, laurel_rank=4, altup_num_inputs=3,
                              final_logit_softcapping=0.5,
                              activation_sparsity_pattern=[0.9, 0.0, 0.0, 0.0], tie_word_embeddings=True),
                       prompt=75, embedding=0.03),
    "gemma3n_four": Fixture(config(Gemma3nTextConfig, hidden_size=24, head_dim=8, sliding_window=24, num_hidden_layers=5,
                                   intermediate_size=[24, 40, 24, 32, 24],
                                   layer_types=["sliding_attention", "full_attention"] + ["sliding_attention"] * 3,
                                   num_kv_shared_layers=2, vocab_size_per_layer_input=120, hidden_size_per_layer_input=8,
                                   laurel_rank=5, altup_num_inputs=4, altup_active_idx=1, altup_correct_scale=False,
                                   final_logit_softcapping=0.5, activation_sparsity_pattern=[0.95, 0.3, 0.0, 0.0, 0.5],
                                   tie_word_embeddings=True), prompt=45, embedding=0.0003, dtype=torch.bfloat16),
    "gemma4": Fixture(config(Gemma4TextConfig, sliding_window=24, num_hidden_layers=4, intermediate_size=40,
                             layer_types=["sliding_attention", "full_attention"] * 2, num_kv_shared_layers=2,
                             vocab_size_per_layer_input=131, hidden_size_per_layer_input=8, global_head_dim=24,
                             final_logit_softcapping=0.5, tie_word_embeddings=True), prompt=75, embedding=0.03),
    "granite": Fixture(config(GraniteConfig, head_dim=..., embedding_multiplier=3.0, residual_multiplier=0.4, attention_multiplier=0.2,
                              logits_scaling=2.0), dtype=torch.bfloat16),
    "nemotron": Fixture(config(NemotronConfig), dtype=torch.bfloat16),
    "phi3": Fixture(config(Phi3Config, head_dim=..., sliding_window=24), prompt=75, dtype=torch.bfloat16),
    "qwen3_moe": Fixture(config(Qwen3MoeConfig, num_hidden_layers=3, num_experts=5, num_experts_per_tok=2, moe_intermediate_size=24,
                                intermediate_size=40, mlp_only_layers=[1]), dtype=torch.bfloat16),
    "qwen3_moe_norm": Fixture(config(Qwen3MoeConfig, num_experts=4, num_experts_per_tok=3, moe_intermediate_size=24,
                                     intermediate_size=40, norm_topk_prob=True), dtype=torch.bfloat16),
    "starcoder2": Fixture(config(Starcoder2Config, head_dim=..., sliding_window=24), prompt=75, dtype=torch.bfloat16),
}


def gguf_config(cls, **changes):
    return config(cls, **{**dict(vocab_size=VOCAB, hidden_size=64, intermediate_size=96, head_dim=...), **changes})


TIED = gguf_config(LlamaConfig, tie_word_embeddings=True)
UNTIED = gguf_config(LlamaConfig)

GGUF_MODELS = {
    "gguf_f32": GgufFixture(TIED, Type.F32, Type.F32),
    "gguf_f16": GgufFixture(UNTIED, Type.F16, Type.F16),
    "gguf_bf16": GgufFixture(TIED, Type.BF16, Type.BF16),
    "gguf_q8_0": GgufFixture(UNTIED, Type.Q8_0, Type.Q8_0),
    "gguf_q4_0": GgufFixture(UNTIED, Type.Q4_0, Type.Q4_0),
    "gguf_q4_1": GgufFixture(TIED, Type.Q4_1, Type.Q8_0),
    "gguf_qwen2": GgufFixture(gguf_config(Qwen2Config), Type.Q8_0, Type.Q8_0),
    "gguf_qwen3": GgufFixture(gguf_config(Qwen3Config, head_dim=32), Type.Q8_0, Type.Q8_0),
}


def main():
    for name in sys.argv[1:] or [*MODELS, *GGUF_MODELS]:
        if name in MODELS:
            make(name, MODELS[name])
        else:
            make_gguf(name, GGUF_MODELS[name])


if __name__ == "__main__":
    main()
