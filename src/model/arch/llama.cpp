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

// Every fourth layer has no positions; its files do not say so.
void smollm3_from_gguf(const Checkpoint& files, Json& config) {
  Json positions = Json::array();
  const int64_t layers = Config(config, files.path().filename().string()).layers();
  for (int64_t i = 0; i < layers; i++) positions.push_back((i + 1) % 4 != 0 ? 1 : 0);
  config["no_rope_layers"] = positions;
}

}  // namespace mr
