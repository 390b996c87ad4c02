// Gemma 2 and 3 (text): norms of weight 1 + w before and after mixer and feed-forward, scaled embeddings, layers with a window
// between layers without. Gemma 2 caps logits; Gemma 3 norms the heads of q and k and has one rope for each kind of layer.
#include <cmath>

#include "model/arch/arch.h"
#include "model/rope.h"

namespace mr {

// Without layer_types, every `pattern`-th layer sees everything.
static ModelSpec gemma_spec(const Config& config, bool qk_norm, int pattern) {
  bool bias = config.boolean("attention_bias", false);
  ModelSpec spec = decoder_spec(config, {.qkv_bias = bias, .out_bias = bias, .qk_norm = qk_norm, .activation = "gelu_pytorch_tanh"});
  config.require(!config.boolean("use_bidirectional_attention", false), "attention in both directions is not supported");
  spec.norm.offset = 1;
  spec.tied = config.boolean("tie_word_embeddings", true);
  spec.embedding_scale = std::sqrt(float(spec.dim));
  spec.logit_softcap = float(config.number("final_logit_softcapping", 0));
  for (int i = 0; i < int(spec.layers.size()); i++) {
    LayerSpec& layer = spec.layers[size_t(i)];
    AttentionSpec& a = std::get<AttentionSpec>(layer.mixer);
    layer.post_norms = true;
    a.scale = 1 / std::sqrt(float(config.number("query_pre_attn_scalar", 256)));
    a.softcap = float(config.number("attn_logit_softcapping", 0));
    if (!config.has("layer_types") && (i + 1) % pattern == 0) a.window = 0;
  }
  return spec;
}

ModelSpec gemma2_spec(const Config& config) { return gemma_spec(config, false, 2); }

ModelSpec gemma3_spec(const Config& config) {
  int pattern = int(config.integer("sliding_window_pattern", 6));
  config.require(pattern > 0, "'sliding_window_pattern' must not be 0");
  ModelSpec spec = gemma_spec(config, true, pattern);
  int head_dim = std::get<AttentionSpec>(spec.layers[0].mixer).head_dim;
  RopeSpec global = rope_from(config, head_dim, "full_attention"), local = rope_from(config, head_dim, "sliding_attention");
  if (!config.has("rope_parameters")) {  // older files: scaling, if any, is for the layers that see everything
    global.theta = float(config.number("rope_theta", 1e6));
    local = {.dim = head_dim, .theta = float(config.number("rope_local_base_freq", 1e4))};
  }
  spec.ropes.clear();
  for (LayerSpec& layer : spec.layers) {
    AttentionSpec& a = std::get<AttentionSpec>(layer.mixer);
    a.rope = spec.add_rope(a.window ? local : global);
  }
  return spec;
}

NameMap gemma_names() {
  NameMap names = decoder_names();
  std::erase_if(names.entries, [](const NameMap::Entry& e) { return e.role == "ffn_norm"; });
  names.entries.insert(names.entries.end(), {{"mixer_post_norm", "model.layers.{}.post_attention_layernorm"},
                                             {"ffn_norm", "model.layers.{}.pre_feedforward_layernorm"},
                                             {"ffn_post_norm", "model.layers.{}.post_feedforward_layernorm"}});
  return names;
}

}  // namespace mr
