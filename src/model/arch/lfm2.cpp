// LFM2 (Liquid AI 2025): most layers are gated short convolutions, a few attend with norms on the heads.
#include <algorithm>

#include "model/arch/arch.h"

namespace mr {

// The first configurations named things in their own way.
static Json usual_names(Json json) {
  for (auto [own, usual] : {std::pair{"block_ff_dim", "intermediate_size"}, {"tie_embedding", "tie_word_embeddings"}})
    if (json.contains(own)) json[usual] = json[own];
  if (!json.contains("tie_word_embeddings")) json["tie_word_embeddings"] = true;
  return json;
}

// Two thirds of what the configuration says, times a factor, rounded up.
static int feed_forward_width(const Config& config) {
  constexpr std::string_view what = "the width of the feed-forward";
  int64_t width = config.positive("intermediate_size");
  if (!config.boolean("block_auto_adjust_ff_dim", true)) return int(width);
  width = config.narrow(config.number("block_ffn_dim_multiplier", 1) * double(2 * width / 3), what);
  const int64_t multiple = config.integer("block_multiple_of", 256);
  config.require(multiple > 0 && width > 0, "a feed-forward of {} channels in multiples of {} is none", width, multiple);
  return config.narrow(double((width + multiple - 1) / multiple * multiple), what);
}

static bool attends(const Config& config, int layer) {
  if (!config.has("layer_types")) {
    const std::vector<int32_t> those = config.integers("full_attn_idxs");
    return !config.has("full_attn_idxs") || std::ranges::count(those, layer);
  }
  const Json& types = config.json().at("layer_types");
  config.require(
      types.is_array() && int(types.size()) > layer && (types[size_t(layer)] == "conv" || types[size_t(layer)] == "full_attention"),
      "'layer_types' does not say whether layer {} is a convolution or attends", layer);
  return types[size_t(layer)] == "full_attention";
}

ModelSpec lfm2_spec(const Config& stored) {
  const Json json = usual_names(stored.json());
  const Config config(json, stored.where());
  ModelSpec spec = decoder_spec(config, {.qk_norm = true});
  spec.norm.eps = float(config.number("norm_eps", 1e-5));
  const GatedConvSpec conv{spec.dim, int(config.integer("conv_L_cache", 3)), config.boolean("conv_bias", false)};
  config.require(conv.conv > 0, "'conv_L_cache' must not be 0");
  for (int i = 0; i < int(spec.layers.size()); i++) {
    LayerSpec& layer = spec.layers[size_t(i)];
    std::get<MlpSpec>(layer.ffn).hidden = feed_forward_width(config);
    if (!attends(config, i)) layer.mixer = conv;
  }
  return spec;
}

NameMap lfm2_names() {
  return {{{"embedding", "model.embed_tokens"},
           {"final_norm", "model.embedding_norm"},
           {"output", "lm_head"},
           {"mixer_norm", "model.layers.{}.operator_norm"},
           {"ffn_norm", "model.layers.{}.ffn_norm"},
           {"in", "model.layers.{}.conv.in_proj"},
           {"conv", "model.layers.{}.conv.conv"},
           {"out", "model.layers.{}.conv.out_proj"},
           {"q", "model.layers.{}.self_attn.q_proj"},
           {"k", "model.layers.{}.self_attn.k_proj"},
           {"v", "model.layers.{}.self_attn.v_proj"},
           {"o", "model.layers.{}.self_attn.out_proj"},
           {"q_norm", "model.layers.{}.self_attn.q_layernorm"},
           {"k_norm", "model.layers.{}.self_attn.k_layernorm"},
           {"gate", "model.layers.{}.feed_forward.w1"},
           {"up", "model.layers.{}.feed_forward.w3"},
           {"down", "model.layers.{}.feed_forward.w2"}}};
}

NameMap lfm2_gguf_names() {
  NameMap names = decoder_gguf_names();
  for (NameMap::Entry& e : names.entries)
    if (e.role == "final_norm") e.pattern = "token_embd_norm";
  names.entries.insert(names.entries.end(),
                       {{"in", "blk.{}.shortconv.in_proj"}, {"conv", "blk.{}.shortconv.conv"}, {"out", "blk.{}.shortconv.out_proj"}});
  return names;
}

void lfm2_from_gguf(const Checkpoint& files, Json& config) {
  config["block_auto_adjust_ff_dim"] = false;
  Json types = Json::array();
  for (bool attends : attending_layers(config)) {
    const std::string bias = fmt::format("blk.{}.shortconv.conv.bias", types.size());
    if (files.find(bias)) config["conv_bias"] = true;
    types.push_back(attends ? "full_attention" : "conv");
  }
  config["layer_types"] = types;
}

}  // namespace mr
