// Mamba-2 (Dao & Gu 2024): blocks of one mixer with heads, no feed-forward.
#include <algorithm>

#include "model/arch/arch.h"

namespace mr {

NameMap mamba_names();
NameMap mamba_gguf_names();

// An entry of time_step_limit: a number, or {"__float__": "Infinity"}.
static float limit_from(const Config& config, const Json& j) {
  if (j.is_number()) return float(std::clamp(j.get<double>(), -1e30, 1e30));
  bool infinite = j.is_object() && j.contains("__float__") && j["__float__"] == "Infinity";
  config.require(infinite, "'time_step_limit' holds something that is not a number");
  return std::numeric_limits<float>::infinity();
}

ModelSpec mamba2_spec(const Config& config) {
  ModelSpec spec;
  spec.dim = int(config.positive("hidden_size"));
  spec.vocab = int(config.positive("vocab_size"));
  spec.max_context = int(config.integer("max_position_embeddings", 1 << 20));  // nothing in it grows with the context
  spec.norm = {Norm::Kind::rms, float(config.number("layer_norm_epsilon", 1e-5))};
  spec.tied = config.boolean("tie_word_embeddings", false);
  spec.eos = config.integers("eos_token_id");
  Mamba2Spec m;
  m.heads = int(config.positive("num_heads"));
  m.head_dim = int(config.positive("head_dim"));
  m.n_state = int(config.positive("state_size"));
  m.groups = int(config.positive("n_groups"));
  m.conv = int(config.positive("conv_kernel"));
  m.conv_bias = config.boolean("use_conv_bias", true);
  m.proj_bias = config.boolean("use_bias", false);
  config.require(int64_t(m.heads) * m.head_dim == config.integer("expand", 2) * spec.dim,
                 "{} heads of {} are not {} times the hidden size of {}", m.heads, m.head_dim, config.integer("expand", 2), spec.dim);
  if (config.has("time_step_limit")) {
    const Json& limit = config.json().at("time_step_limit");
    config.require(limit.is_array() && limit.size() == 2, "'time_step_limit' must be a list of two numbers");
    m.dt_min = limit_from(config, limit[0]);
    m.dt_max = limit_from(config, limit[1]);
    config.require(m.dt_min <= m.dt_max, "'time_step_limit' is {} to {}, but must ascend", m.dt_min, m.dt_max);
  }
  for (int i = 0; i < config.layers(); i++) spec.layers.push_back({m, {}});
  return spec;
}

NameMap mamba2_names() {
  NameMap names = mamba_names();
  std::erase_if(names.entries, [](const NameMap::Entry& e) { return e.role == "x" || e.role == "dt"; });
  names.entries.insert(names.entries.end(),
                       {{"dt_bias", "backbone.layers.{}.mixer.dt_bias"}, {"gated_norm", "backbone.layers.{}.mixer.norm"}});
  return names;
}

NameMap mamba2_gguf_names() {
  NameMap names = mamba_gguf_names();
  std::erase_if(names.entries, [](const NameMap::Entry& e) { return e.role == "x" || e.role == "dt"; });
  names.entries.insert(names.entries.end(), {{"dt_bias", "blk.{}.ssm_dt.bias"}, {"gated_norm", "blk.{}.ssm_norm"}});
  return names;
}

// The file has the width of all heads together, and their number as the rank of dt.
void mamba2_from_gguf(const Checkpoint& files, Json& json) {
  const Config config(json, files.path().filename().string());
  const int64_t inner = config.positive("ssm_inner_size"), heads = config.positive("time_step_rank"), dim = config.positive("hidden_size");
  config.require(inner % heads == 0 && inner % dim == 0, "an inner size of {} does not divide into {} heads, or is no multiple of {}",
                 inner, heads, dim);
  json["num_heads"] = heads;
  json["head_dim"] = inner / heads;
  json["expand"] = inner / dim;
  json["use_conv_bias"] = files.find("blk.0.ssm_conv1d.bias") != nullptr;
}

}  // namespace mr
