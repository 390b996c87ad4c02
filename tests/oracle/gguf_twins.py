"""Writes tests/fixtures/models/gguf_<name>/model.gguf: models of the other fixtures as GGUF files, named by the `gguf` package and laid out
as llama.cpp's converter does it. What transformers computes from the original holds for the twin: expected.json and logits.f32 are links.

    python tests/oracle/gguf_twins.py [name ...]

Run in an environment with requirements.txt. Matrices keep their type, vectors are F32.
"""

import json
import math
import os
import re
import shutil
import statistics
import sys

import gguf
import torch
from gguf import GGMLQuantizationType as Type
from safetensors.torch import load_file

from fixture import ROOT
from gguf_fixture import permute

TWINS = {  # fixture -> general.architecture
    "gemma": "gemma", "gemma2": "gemma2", "gemma3": "gemma3", "gemma3n": "gemma3n", "mistral_window": "llama", "mixtral": "llama",
    "qwen3_moe_norm": "qwen3moe", "phi3": "phi3", "llama_rope_longrope": "phi3", "granite": "granite", "nemotron": "nemotron",
    "starcoder2": "starcoder2", "jamba": "jamba", "mamba2": "mamba2", "falcon_mamba": "mamba", "lfm2": "lfm2",
}


def rope_of(c, kind):
    parameters = c.get("rope_parameters", {})
    return parameters.get(kind, parameters)


def head_dim_of(c):
    return c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]


def add_attention(w, c, arch):
    heads_kv = c["num_key_value_heads"]
    if arch == "jamba":
        heads_kv = [heads_kv if i % c["attn_layer_period"] == c["attn_layer_offset"] else 0 for i in range(c["num_hidden_layers"])]
    if arch == "lfm2":
        heads_kv = [heads_kv if kind == "full_attention" else 0 for kind in c["layer_types"]]
    w.add_head_count(c["num_attention_heads"])
    w.add_head_count_kv(heads_kv)
    if c.get("head_dim"):
        w.add_key_length(c["head_dim"])
        w.add_value_length(c["head_dim"])
    if c.get("sliding_window"):
        w.add_sliding_window(c["sliding_window"])
    rope = rope_of(c, "full_attention")
    if rope:
        w.add_rope_freq_base(rope["rope_theta"])
    if "sliding_attention" in c.get("rope_parameters", {}) and arch == "gemma3n":  # older files of gemma3 do not have it
        w.add_rope_freq_base_swa(rope_of(c, "sliding_attention")["rope_theta"])
    if arch in ("llama", "granite", "phi3", "nemotron"):
        w.add_rope_dimension_count(int(head_dim_of(c) * rope.get("partial_rotary_factor", 1)))
    if rope.get("rope_type") == "longrope":
        original = rope["original_max_position_embeddings"]
        w.add_rope_scaling_orig_ctx_len(original)
        w.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(c["max_position_embeddings"] / original) / math.log(original)))


def add_state_space(w, c, arch):
    prefix = "mamba_d_" if arch == "jamba" else ""
    inner = c.get("mamba_expand", c.get("expand")) * c["hidden_size"]
    w.add_ssm_conv_kernel(c["mamba_d_conv" if prefix else "conv_kernel"])
    w.add_ssm_inner_size(inner)
    w.add_ssm_state_size(c["mamba_d_state" if prefix else "state_size"])
    w.add_ssm_time_step_rank(c["num_heads"] if arch == "mamba2" else c["mamba_dt_rank" if prefix else "time_step_rank"])
    if arch == "mamba2":
        w.add_ssm_group_count(c["n_groups"])
    if arch == "mamba":
        w.add_ssm_dt_b_c_rms(c["model_type"] == "falcon_mamba")
    if arch != "jamba":
        w.add_head_count(0)


def feed_forward(c, arch):
    if arch == "lfm2" and c["block_auto_adjust_ff_dim"]:
        width = int(c["block_ffn_dim_multiplier"] * int(2 * c["intermediate_size"] / 3))
        return -(-width // c["block_multiple_of"]) * c["block_multiple_of"]
    return 0 if arch.startswith("mamba") else c["intermediate_size"]


def add_family(w, c, arch):
    if c.get("attn_logit_softcapping"):
        w.add_attn_logit_softcapping(c["attn_logit_softcapping"])
    if c.get("final_logit_softcapping"):
        w.add_final_logit_softcapping(c["final_logit_softcapping"])
    if arch == "gemma3":  # layers without a window: every third
        w.add_sliding_window_pattern(c["layer_types"].index("full_attention") + 1)
    if arch == "gemma3n":
        w.add_sliding_window_pattern([kind == "sliding_attention" for kind in c["layer_types"]])
        w.add_altup_active_idx(c["altup_active_idx"])
        w.add_altup_num_inputs(c["altup_num_inputs"])
        w.add_embedding_length_per_layer_input(c["hidden_size_per_layer_input"])
        w.add_shared_kv_layers(c["num_kv_shared_layers"])
        deviations = [statistics.NormalDist().inv_cdf(s) if s else -math.inf for s in c["activation_sparsity_pattern"]]
        w.add_activation_sparsity_scale(deviations)
    if arch == "granite":
        w.add_attention_scale(c["attention_multiplier"])
        w.add_embedding_scale(c["embedding_multiplier"])
        w.add_residual_scale(c["residual_multiplier"])
        w.add_logit_scale(c["logits_scaling"])
    if arch == "lfm2":
        w.add_shortconv_l_cache(c["conv_L_cache"])
    if experts := c.get("num_local_experts", c.get("num_experts")):
        w.add_expert_count(experts)
        w.add_expert_used_count(c["num_experts_per_tok"])
    if "moe_intermediate_size" in c:
        w.add_expert_feed_forward_length(c["moe_intermediate_size"])


def add_metadata(w, c, arch):
    w.add_type("model")
    w.add_block_count(c["num_hidden_layers"])
    w.add_context_length(c.get("max_position_embeddings", 1 << 20))
    w.add_embedding_length(c["hidden_size"])
    w.add_feed_forward_length(feed_forward(c, arch))
    w.add_vocab_size(c["vocab_size"])
    w.add_tokenizer_model("none")
    if arch in ("nemotron", "starcoder2"):
        w.add_layer_norm_eps(c.get("norm_eps", c.get("norm_epsilon")))
    else:
        w.add_layer_norm_rms_eps(c.get("rms_norm_eps", c.get("layer_norm_epsilon", c.get("norm_eps"))))
    if "num_attention_heads" in c:
        add_attention(w, c, arch)
    if arch in ("jamba", "mamba", "mamba2"):
        add_state_space(w, c, arch)
    add_family(w, c, arch)


def stacked(tensors):
    """Experts of a layer, and projections between streams, are one tensor."""
    groups, out = {}, {}
    for name, x in tensors.items():
        if found := re.search(r"\.(experts|altup_projections|altup_unembed_projections)\.(\d+)\.", name):
            one = name[: found.start(2)] + name[found.end():]
            groups.setdefault(one, {})[int(found[2])] = x
        else:
            out[name] = x
    for name, group in groups.items():
        out[name] = torch.stack([group[i] for i in range(len(group))])
    return out


def one_of_qkv_and_gate(tensors):
    """A Llama's tensors as Phi-3 has them."""
    out = dict(tensors)
    for name in tensors:
        if name.endswith("q_proj.weight"):
            parts = [out.pop(name.replace("q_proj", p)) for p in ("q_proj", "k_proj", "v_proj")]
            out[name.replace("q_proj", "qkv_proj")] = torch.cat(parts)
        if name.endswith("gate_proj.weight"):
            out[name.replace("gate_proj", "gate_up_proj")] = torch.cat([out.pop(name), out.pop(name.replace("gate_proj", "up_proj"))])
    return out


def stored(name, x, c, arch):
    """A tensor's values as the converter writes them."""
    last = name.split(".")[-2]
    if arch in ("llama", "granite") and last in ("q_proj", "k_proj"):
        x = torch.from_numpy(permute(x.float().numpy(), c["num_attention_heads" if last == "q_proj" else "num_key_value_heads"])).to(x)
    if arch in ("gemma", "gemma2", "gemma3", "nemotron") and name.endswith("norm.weight"):
        x = x.float() + 1
    # The file cannot say query_pre_attn_scalar: readers take the size of a head. What differs goes into q.
    if arch in ("gemma2", "gemma3") and last == ("q_norm" if arch == "gemma3" else "q_proj"):
        x = x * math.sqrt(c["head_dim"] / c["query_pre_attn_scalar"])
    if name.endswith("A_log"):
        x = -torch.exp(x)
    if ".conv" in name and x.ndim == 3:
        x = x.squeeze(1)
    if arch == "mamba2" and (name.endswith("A_log") or name.endswith(".D")):
        x = x[:, None]
    if arch == "mamba2" and name.endswith("mixer.norm.weight"):
        x = x.reshape(c["n_groups"], -1)
    return x


def mapped(names, name):
    if name.endswith("dt_bias"):
        name = name.replace("dt_bias", "dt_proj.bias")
    if name.endswith("_scale"):
        name += ".weight"
    name = re.sub(r"feed_forward\.experts", "mlp.experts", name)  # Jamba's take the name of Qwen's
    found = names.get_name(name, try_suffixes=(".weight", ".bias"))
    assert found, name
    return found


def write_twin(name, arch):
    source, folder = ROOT / name, ROOT / f"gguf_{name}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    c = json.loads((source / "config.json").read_text())
    w = gguf.GGUFWriter(folder / "model.gguf", arch)
    add_metadata(w, c, arch)
    tensors = stacked(load_file(source / "model.safetensors"))
    if arch == "phi3" and c["model_type"] == "llama":
        tensors = one_of_qkv_and_gate(tensors)
    kind = gguf.MODEL_ARCH(next(k for k, v in gguf.MODEL_ARCH_NAMES.items() if v == arch))
    names = gguf.get_tensor_name_map(kind, c["num_hidden_layers"])
    for own, x in tensors.items():
        x = stored(own, x, c, arch)
        plain = Type.BF16 if x.dtype == torch.bfloat16 and x.ndim > 1 else Type.F32
        w.add_tensor(mapped(names, own), gguf.quants.quantize(x.float().contiguous().numpy(), plain), raw_dtype=plain)
    rope = rope_of(c, "full_attention")
    for length in ("long", "short"):
        if f"{length}_factor" in rope:
            w.add_tensor(f"rope_factors_{length}.weight", torch.tensor(rope[f"{length}_factor"]).numpy())
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    for file in ("expected.json", "logits.f32"):
        os.symlink(f"../{name}/{file}", folder / file)
    print(f"{folder.name:28} {(folder / 'model.gguf').stat().st_size / 1024:6.0f} KiB")


if __name__ == "__main__":
    for name in sys.argv[1:] or TWINS:
        write_twin(name, TWINS[name])
