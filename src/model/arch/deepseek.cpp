// DeepSeek-V2 (2024): latent attention; after the first layers, many small experts beside some that every token uses.
#include "model/arch/arch.h"
#include "model/rope.h"

namespace mr {

ModelSpec deepseek_v2_spec(const Config& config) {
  ModelSpec spec = decoder_spec(config, {});
  MlaSpec mla;
  mla.heads = int(config.positive("num_attention_heads"));
  mla.q_rank = int(config.integer("q_lora_rank", 0));
  mla.kv_rank = int(config.positive("kv_lora_rank"));
  mla.nope_dim = int(config.positive("qk_nope_head_dim"));
  mla.rope_dim = int(config.positive("qk_rope_head_dim"));
  mla.v_dim = int(config.positive("v_head_dim"));
  spec.ropes.clear();
  spec.add_rope(rope_from(config, mla.rope_dim));

  const int64_t dense = config.integer("first_k_dense_replace", 0), every = config.integer("moe_layer_freq", 1);
  config.require(every > 0, "'moe_layer_freq' must not be 0");
  for (int i = 0; i < int(spec.layers.size()); i++) {
    spec.layers[size_t(i)].mixer = mla;
    if (!config.has("n_routed_experts") || i < dense || i % every != 0) continue;
    MoeSpec moe = moe_from(config, "n_routed_experts", config.boolean("norm_topk_prob", false));
    moe.hidden = int(config.positive("moe_intermediate_size"));
    moe.shared = config.narrow(double(config.integer("n_shared_experts", 0)) * moe.hidden, "the width of the shared experts");
    spec.layers[size_t(i)].ffn = moe;
  }
  return spec;
}

}  // namespace mr
