// Nemotron 3 and 4, Minitron: layer norms by 1 + weight, a feed-forward without a gate, rope on a part of each head.
#include "model/arch/arch.h"

namespace mr {

ModelSpec nemotron_spec(const Config& config) {
  const bool bias = config.boolean("attention_bias", false);
  const DecoderTraits traits{.qkv_bias = bias, .out_bias = bias, .mlp_bias = config.boolean("mlp_bias", false), .activation = "relu2"};
  ModelSpec spec = decoder_spec(config, traits);
  spec.norm = {Norm::Kind::layer, float(config.number("norm_eps", 1e-5)), 1};
  for (LayerSpec& layer : spec.layers) std::get<MlpSpec>(layer.ffn).gated = false;
  return spec;
}

}  // namespace mr
