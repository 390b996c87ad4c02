// Llama 1 to 3.x and what is shaped like it: SmolLM2, Yi, TinyLlama.
#include "model/arch/arch.h"

namespace mr {

ModelSpec llama_spec(const Config& config) {
  bool bias = config.boolean("attention_bias", false);
  return decoder_spec(config, {.qkv_bias = bias, .out_bias = bias, .mlp_bias = config.boolean("mlp_bias", false)});
}

NameMap llama_gguf_names() {
  NameMap names = decoder_gguf_names();
  names.permuted_qk = true;
  return names;
}

}  // namespace mr
