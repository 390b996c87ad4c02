// Qwen 2 and 2.5 (biases on q, k, v), Qwen 3 (norms on the heads of q and k), Qwen 3 with experts.
#include <algorithm>

#include "model/arch/arch.h"

namespace mr {

ModelSpec qwen2_spec(const Config& config) { return decoder_spec(config, {.qkv_bias = true}); }

ModelSpec qwen3_spec(const Config& config) {
  bool bias = config.boolean("attention_bias", false);
  return decoder_spec(config, {.qkv_bias = bias, .out_bias = bias, .qk_norm = true});
}

ModelSpec qwen3_moe_spec(const Config& config) {
  ModelSpec spec = qwen3_spec(config);
  MoeSpec moe = moe_from(config, config.has("num_experts") ? "num_experts" : "num_local_experts", config.boolean("norm_topk_prob", false));
  moe.hidden = int(config.positive("moe_intermediate_size"));
  const std::vector<int32_t> dense = config.integers("mlp_only_layers");
  const int64_t every = config.integer("decoder_sparse_step", 1);
  config.require(every > 0, "'decoder_sparse_step' must not be 0");
  for (int i = 0; i < int(spec.layers.size()); i++)
    if ((i + 1) % every == 0 && !std::ranges::count(dense, i)) spec.layers[size_t(i)].ffn = moe;
  return spec;
}

NameMap qwen3_moe_names() {
  NameMap names = decoder_names();
  names.entries.insert(names.entries.end(), {{"router", "model.layers.{}.mlp.gate"},
                                             {"expert_gate", "model.layers.{}.mlp.experts.{}.gate_proj"},
                                             {"expert_up", "model.layers.{}.mlp.experts.{}.up_proj"},
                                             {"expert_down", "model.layers.{}.mlp.experts.{}.down_proj"}});
  return names;
}

NameMap qwen3_moe_gguf_names() { return with_gguf_experts(decoder_gguf_names()); }

void qwen3_moe_from_gguf(const Checkpoint&, Json& config) { config["norm_topk_prob"] = true; }

}  // namespace mr
