// Qwen 2 and 2.5 (biases on q, k, v), Qwen 3 (norms on the heads of q and k).
#include "model/arch/arch.h"

namespace mr {

ModelSpec qwen2_spec(const Config& config) { return decoder_spec(config, {.qkv_bias = true}); }

ModelSpec qwen3_spec(const Config& config) {
  bool bias = config.boolean("attention_bias", false);
  return decoder_spec(config, {.qkv_bias = bias, .out_bias = bias, .qk_norm = true});
}

}  // namespace mr
