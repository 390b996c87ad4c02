// Granite 3 (dense): Llama with four multipliers.
#include "model/arch/arch.h"

namespace mr {

ModelSpec llama_spec(const Config&);

ModelSpec granite_spec(const Config& config) {
  ModelSpec spec = llama_spec(config);
  spec.embedding_scale = float(config.number("embedding_multiplier", 1));
  spec.residual_scale = float(config.number("residual_multiplier", 1));
  spec.logit_scale = 1 / float(config.number("logits_scaling", 1));
  for (LayerSpec& layer : spec.layers) std::get<AttentionSpec>(layer.mixer).scale = float(config.number("attention_multiplier", 1));
  return spec;
}

}  // namespace mr
