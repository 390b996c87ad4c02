// Mixtral: Mistral whose feed-forward is a mixture of experts.
#include "model/arch/arch.h"

namespace mr {

ModelSpec mixtral_spec(const Config& config) {
  ModelSpec spec = decoder_spec(config, {});
  MoeSpec moe;
  moe.experts = int(config.positive("num_local_experts"));
  moe.used = int(config.positive("num_experts_per_tok"));
  moe.hidden = int(config.positive("intermediate_size"));
  moe.activation = activation_from(config, config.text("hidden_act", "silu"));
  config.require(moe.used <= moe.experts, "a token cannot use {} of {} experts", moe.used, moe.experts);
  for (LayerSpec& layer : spec.layers) layer.ffn = moe;
  return spec;
}

NameMap mixtral_names() {
  NameMap names = decoder_names();
  names.entries.insert(names.entries.end(), {{"router", "model.layers.{}.block_sparse_moe.gate"},
                                             {"expert_gate", "model.layers.{}.block_sparse_moe.experts.{}.w1"},
                                             {"expert_up", "model.layers.{}.block_sparse_moe.experts.{}.w3"},
                                             {"expert_down", "model.layers.{}.block_sparse_moe.experts.{}.w2"}});
  return names;
}

}  // namespace mr
