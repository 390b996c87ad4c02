// GGUF metadata ("llama.block_count") under the names that config.json uses, so that a family reads one kind of configuration.
#include <algorithm>

#include "model/arch/arch.h"

namespace mr {

// A key may stand under several names: each family's configuration has its own.
static constexpr std::pair<const char*, const char*> kKeys[] = {
    {"block_count", "num_hidden_layers"},
    {"embedding_length", "hidden_size"},
    {"feed_forward_length", "intermediate_size"},
    {"context_length", "max_position_embeddings"},
    {"attention.head_count", "num_attention_heads"},
    {"attention.head_count_kv", "num_key_value_heads"},
    {"attention.key_length", "head_dim"},
    {"attention.layer_norm_rms_epsilon", "rms_norm_eps"},
    {"attention.layer_norm_rms_epsilon", "layer_norm_epsilon"},
    {"attention.layer_norm_rms_epsilon", "norm_eps"},
    {"attention.layer_norm_epsilon", "norm_eps"},
    {"attention.layer_norm_epsilon", "norm_epsilon"},
    {"attention.sliding_window", "sliding_window"},
    {"attention.scale", "attention_multiplier"},
    {"attention.shared_kv_layers", "num_kv_shared_layers"},
    {"attn_logit_softcapping", "attn_logit_softcapping"},
    {"final_logit_softcapping", "final_logit_softcapping"},
    {"embedding_scale", "embedding_multiplier"},
    {"residual_scale", "residual_multiplier"},
    {"logit_scale", "logits_scaling"},
    {"rope.freq_base", "rope_theta"},
    {"rope.freq_base_swa", "rope_local_base_freq"},
    {"expert_count", "num_local_experts"},
    {"expert_count", "num_experts"},
    {"expert_used_count", "num_experts_per_tok"},
    {"expert_feed_forward_length", "moe_intermediate_size"},
    {"embedding_length_per_layer_input", "hidden_size_per_layer_input"},
    {"activation_sparsity_scale", "activation_sparsity_scale"},
    {"altup.active_idx", "altup_active_idx"},
    {"altup.num_inputs", "altup_num_inputs"},
    {"shortconv.l_cache", "conv_L_cache"},
    {"ssm.conv_kernel", "conv_kernel"},
    {"ssm.conv_kernel", "mamba_d_conv"},
    {"ssm.inner_size", "ssm_inner_size"},
    {"ssm.state_size", "state_size"},
    {"ssm.state_size", "mamba_d_state"},
    {"ssm.time_step_rank", "time_step_rank"},
    {"ssm.time_step_rank", "mamba_dt_rank"},
    {"ssm.group_count", "n_groups"},
    {"ssm.dt_b_c_rms", "dt_b_c_rms"},
};

// Divisors of the rope's frequencies, a tensor of their own.
static std::vector<float> divisors(const StoredTensor& t) {
  check(t.format == "f32", "{} is stored as {}, not f32", t.name, t.format);
  constexpr size_t most = 8192;  // pairs of rotated dimensions
  check(t.bytes.size() / 4 <= most, "{} has {} divisors, but at most {} are possible", t.name, t.bytes.size() / 4, most);
  const float* f = reinterpret_cast<const float*>(t.bytes.data());
  return std::vector<float>(f, f + t.bytes.size() / 4);
}

// Llama 3's scaling arrives as a tensor of divisors, Phi 3's as two; the others as metadata.
static void read_rope(const Checkpoint& files, const std::string& arch, Json& out) {
  const Json& meta = files.config();
  auto value = [&](const std::string& key) -> const Json* {
    return meta.contains(arch + "." + key) ? &meta.at(arch + "." + key) : nullptr;
  };
  Json rope = Json::object();
  const StoredTensor *factors = files.find("rope_freqs.weight"), *near = files.find("rope_factors_short.weight"),
                     *far = files.find("rope_factors_long.weight");
  const Json* type = value("rope.scaling.type");
  if (factors) {
    const std::vector<float> all = divisors(*factors);
    rope = {{"rope_type", "factors"}, {"short_factor", all}, {"long_factor", all}};
  } else if (near && far) {
    rope = {{"rope_type", "longrope"}, {"short_factor", divisors(*near)}, {"long_factor", divisors(*far)}};
  } else if (type && type->is_string()) {
    rope["rope_type"] = *type;
    if (const Json* factor = value("rope.scaling.factor")) rope["factor"] = *factor;
  }
  if (!rope.empty() && !factors) {
    if (const Json* original = value("rope.scaling.original_context_length")) rope["original_max_position_embeddings"] = *original;
    if (const Json* attention = value("rope.scaling.attn_factor")) rope["attention_factor"] = *attention;
  }
  if (const Json* dim = value("rope.dimension_count"); dim && dim->is_number_integer() && out.contains("num_attention_heads")) {
    Config config(out, files.path().filename().string());
    int64_t head_dim = config.integer("head_dim", config.positive("hidden_size") / config.positive("num_attention_heads"));
    if (head_dim && dim->get<int64_t>() != head_dim) rope["partial_rotary_factor"] = double(dim->get<int64_t>()) / double(head_dim);
  }
  if (!rope.empty()) {
    rope["rope_theta"] = out.value("rope_theta", Json(10000.0));
    out["rope_parameters"] = rope;
  }
}

// Hybrids list the heads of every layer, 0 where a layer does not attend. All others must be equal.
static void read_kv_heads(Json& out, const Config& config) {
  if (!config.has("num_key_value_heads") || !out["num_key_value_heads"].is_array()) return;
  const std::vector<int32_t> each = config.integers("num_key_value_heads");
  int32_t heads = 0;
  Json attends = Json::array();
  for (int32_t n : each) {
    config.require(n == 0 || heads == 0 || n == heads, "layers with {} and with {} heads of keys and values cannot be in one model", heads,
                   n);
    heads = std::max(heads, n);
    attends.push_back(n != 0);
  }
  config.require(int64_t(each.size()) == config.layers(), "'attention.head_count_kv' has {} entries for {} layers", each.size(),
                 config.layers());
  out["attends"] = attends;
  out["num_key_value_heads"] = heads;
}

std::vector<bool> attending_layers(const Json& config) {
  std::vector<bool> layers;
  if (config.contains("attends"))
    for (const Json& attends : config["attends"]) layers.push_back(attends.get<bool>());
  return layers;
}

// Which layers have the window: a list, or a number of which every so many-th layer sees everything.
static void read_window_pattern(const Json& pattern, Json& out, const Config& config) {
  Json types = Json::array();
  auto add = [&](bool window) { types.push_back(window ? "sliding_attention" : "full_attention"); };
  if (pattern.is_array()) {
    config.require(int64_t(pattern.size()) == config.layers(), "'attention.sliding_window_pattern' has {} entries for {} layers",
                   pattern.size(), config.layers());
    for (const Json& window : pattern) add(window == true || (window.is_number() && window != 0));
  } else {
    config.require(pattern.is_number_integer() && pattern > 0, "'attention.sliding_window_pattern' must be a list or a positive number");
    const int64_t every = pattern.get<int64_t>(), layers = config.layers();
    for (int64_t i = 0; i < layers; i++) add((i + 1) % every != 0);
  }
  out["layer_types"] = types;
}

Json config_from_gguf(const Checkpoint& files) {
  const Json& meta = files.config();
  std::string arch = meta.at("general.architecture");
  Json out = Json::object();
  const Config config(out, files.path().filename().string());
  for (auto [gguf, name] : kKeys)
    if (auto it = meta.find(arch + "." + gguf); it != meta.end()) {
      constexpr size_t most = 8192;  // more than any model has layers
      config.require(!it->is_array() || it->size() <= most, "'{}' has {} entries, but at most {} are possible", gguf, it->size(), most);
      out[name] = *it;
    }
  read_kv_heads(out, config);
  if (auto it = meta.find(arch + ".attention.sliding_window_pattern"); it != meta.end()) read_window_pattern(*it, out, config);
  const StoredTensor& embedding = files.get("token_embd.weight");
  check(embedding.shape.size() == 2, "token_embd.weight has shape {}, but must have 2 dimensions", shape_string(embedding.shape));
  out["vocab_size"] = embedding.shape[0];
  auto stored = [&](const char* name) { return files.find(name) != nullptr; };
  out["tie_word_embeddings"] = !stored("output.weight");
  out["attention_bias"] = stored("blk.0.attn_q.bias");
  out["mlp_bias"] = stored("blk.0.ffn_gate.bias") || stored("blk.0.ffn_up.bias");
  out["use_bias"] = stored("blk.0.ffn_up.bias");
  if (auto it = meta.find("tokenizer.ggml.eos_token_id"); it != meta.end()) out["eos_token_id"] = *it;
  read_rope(files, arch, out);
  return out;
}

}  // namespace mr
