// GGUF metadata ("llama.block_count") under the names that config.json uses, so that a family reads one kind of configuration.
#include "model/arch/arch.h"

namespace mr {

static constexpr std::pair<const char*, const char*> kKeys[] = {
    {"block_count", "num_hidden_layers"},
    {"embedding_length", "hidden_size"},
    {"feed_forward_length", "intermediate_size"},
    {"context_length", "max_position_embeddings"},
    {"attention.head_count", "num_attention_heads"},
    {"attention.head_count_kv", "num_key_value_heads"},
    {"attention.key_length", "head_dim"},
    {"attention.layer_norm_rms_epsilon", "rms_norm_eps"},
    {"attention.sliding_window", "sliding_window"},
    {"rope.freq_base", "rope_theta"},
    {"ssm.conv_kernel", "conv_kernel"},
    {"ssm.inner_size", "intermediate_size"},
    {"ssm.state_size", "state_size"},
    {"ssm.time_step_rank", "time_step_rank"},
    {"ssm.dt_b_c_rms", "dt_b_c_rms"},
};

// Llama 3's scaling arrives as a tensor of divisors; the others as metadata.
static void read_rope(const Checkpoint& files, const std::string& arch, Json& out) {
  const Json& meta = files.config();
  auto value = [&](const std::string& key) -> const Json* {
    return meta.contains(arch + "." + key) ? &meta.at(arch + "." + key) : nullptr;
  };
  Json rope = Json::object();
  if (const StoredTensor* factors = files.find("rope_freqs.weight")) {
    check(factors->format == "f32", "rope_freqs.weight is stored as {}, not f32", factors->format);
    constexpr size_t most = 8192;  // pairs of rotated dimensions
    check(factors->bytes.size() / 4 <= most, "rope_freqs.weight has {} divisors, but at most {} are possible", factors->bytes.size() / 4,
          most);
    const float* f = reinterpret_cast<const float*>(factors->bytes.data());
    std::vector<float> divisors(f, f + factors->bytes.size() / 4);
    rope = {{"rope_type", "factors"}, {"short_factor", divisors}, {"long_factor", divisors}};
  } else if (const Json* type = value("rope.scaling.type"); type && type->is_string()) {
    rope["rope_type"] = *type;
    if (const Json* factor = value("rope.scaling.factor")) rope["factor"] = *factor;
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

Json config_from_gguf(const Checkpoint& files) {
  const Json& meta = files.config();
  std::string arch = meta.at("general.architecture");
  Json out = Json::object();
  for (auto [gguf, name] : kKeys)
    if (auto it = meta.find(arch + "." + gguf); it != meta.end()) out[name] = *it;
  if (out.contains("rms_norm_eps")) out["layer_norm_epsilon"] = out["rms_norm_eps"];
  const StoredTensor& embedding = files.get("token_embd.weight");
  check(embedding.shape.size() == 2, "token_embd.weight has shape {}, but must have 2 dimensions", shape_string(embedding.shape));
  out["vocab_size"] = embedding.shape[0];
  out["tie_word_embeddings"] = files.find("output.weight") == nullptr;
  out["attention_bias"] = files.find("blk.0.attn_q.bias") != nullptr;
  out["mlp_bias"] = files.find("blk.0.ffn_gate.bias") != nullptr;
  if (auto it = meta.find("tokenizer.ggml.eos_token_id"); it != meta.end()) out["eos_token_id"] = *it;
  read_rope(files, arch, out);
  return out;
}

}  // namespace mr
