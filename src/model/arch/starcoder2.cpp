// StarCoder 2: layer norms, biases everywhere, a feed-forward without a gate.
#include "model/arch/arch.h"

namespace mr {

ModelSpec starcoder2_spec(const Config& config) {
  const bool bias = config.boolean("use_bias", true);
  ModelSpec spec = decoder_spec(config, {.qkv_bias = bias, .out_bias = bias, .mlp_bias = bias, .activation = "gelu_pytorch_tanh"});
  spec.norm = {Norm::Kind::layer, float(config.number("norm_epsilon", 1e-5))};
  spec.tied = config.boolean("tie_word_embeddings", true);
  for (LayerSpec& layer : spec.layers) std::get<MlpSpec>(layer.ffn).gated = false;
  return spec;
}

NameMap starcoder2_names() {
  NameMap names = decoder_names();
  for (NameMap::Entry& e : names.entries) {
    if (e.role == "up") e.pattern = "model.layers.{}.mlp.c_fc";
    if (e.role == "down") e.pattern = "model.layers.{}.mlp.c_proj";
  }
  return names;
}

}  // namespace mr
