// Mixtral: Mistral whose feed-forward is a mixture of experts.
#include "model/arch/arch.h"

namespace mr {

NameMap llama_gguf_names();

ModelSpec mixtral_spec(const Config& config) {
  ModelSpec spec = decoder_spec(config, {});
  for (LayerSpec& layer : spec.layers) layer.ffn = moe_from(config, "num_local_experts", true);
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

NameMap mixtral_gguf_names() { return with_gguf_experts(llama_gguf_names()); }

}  // namespace mr
