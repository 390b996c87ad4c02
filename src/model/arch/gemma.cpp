// Gemma (text). The first is Llama with scaled embeddings and norms by 1 + weight. 2, 3 and 4: norms before and after mixer and
// feed-forward, scaled embeddings, layers with a window between layers without. Gemma 2 caps logits; Gemma 3 norms the heads of q and k and
// has one rope for each kind of layer; in Gemma 4 the last layers read the keys and values of earlier ones, and every layer has an input of
// its own.
#include "model/arch/gemma.h"

#include <cmath>

#include "model/rope.h"

namespace mr {

ModelSpec gemma1_spec(const Config& config) {
  const bool bias = config.boolean("attention_bias", false);
  ModelSpec spec = decoder_spec(config, {.qkv_bias = bias, .out_bias = bias, .activation = "gelu_pytorch_tanh"});
  config.require(!config.boolean("use_bidirectional_attention", false), "attention in both directions is not supported");
  spec.norm.offset = 1;
  spec.tied = config.boolean("tie_word_embeddings", true);
  spec.embedding_scale = std::sqrt(float(spec.dim));
  for (LayerSpec& layer : spec.layers) {
    Activation& act = std::get<MlpSpec>(layer.ffn).activation;
    if (act == Activation::gelu) act = Activation::gelu_tanh;  // what its first files meant
  }
  return spec;
}

// Without layer_types, every `pattern`-th layer sees everything.
static ModelSpec gemma_spec(const Config& config, bool qk_norm, int pattern) {
  bool bias = config.boolean("attention_bias", false);
  ModelSpec spec = decoder_spec(config, {.qkv_bias = bias, .out_bias = bias, .qk_norm = qk_norm, .activation = "gelu_pytorch_tanh"});
  Json both = config.json().value("use_bidirectional_attention", Json());
  config.require(both.is_null() || both == false || both == "vision", "attention in both directions is not supported");
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

static AttentionSpec& attention(ModelSpec& spec, size_t layer) { return std::get<AttentionSpec>(spec.layers[layer].mixer); }

ModelSpec gemma3_spec(const Config& config) { return gemma3_spec(config, 6); }

ModelSpec gemma3_spec(const Config& config, int otherwise) {
  int pattern = int(config.integer("sliding_window_pattern", otherwise));
  config.require(pattern > 0, "'sliding_window_pattern' must not be 0");
  ModelSpec spec = gemma_spec(config, true, pattern);
  int head_dim = attention(spec, 0).head_dim;
  RopeSpec global = rope_from(config, head_dim, "full_attention"), local = rope_from(config, head_dim, "sliding_attention");
  if (!config.has("rope_parameters")) {  // older files: scaling, if any, is for the layers that see everything
    global.theta = float(config.number("rope_theta", 1e6));
    local = {.dim = head_dim, .theta = float(config.number("rope_local_base_freq", 1e4))};
  }
  spec.ropes.clear();
  for (size_t i = 0; i < spec.layers.size(); i++) {
    AttentionSpec& a = attention(spec, i);
    a.rope = spec.add_rope(a.window ? local : global);
  }
  return spec;
}

// Heads of layers without a window have a size of their own: per_layer_config says it, or the older global_head_dim.
static int gemma4_head_dim(const Config& config, size_t layer, const AttentionSpec& a) {
  if (!config.has("per_layer_config")) return a.window ? a.head_dim : int(config.integer("global_head_dim", 512));
  Config all = config.object("per_layer_config");
  std::string name = std::to_string(layer);
  if (!all.has(name.c_str())) return a.head_dim;
  Config own = all.object(name.c_str());
  for (auto& [key, value] : own.json().items()) own.require(key == "head_dim", "'{}' cannot differ between layers", key);
  return int(own.positive("head_dim"));
}

void share_last_kv(ModelSpec& spec, const Config& config, int otherwise) {
  const size_t n = spec.layers.size(), shared = size_t(config.integer("num_kv_shared_layers", otherwise));
  config.require(shared < n, "{} of {} layers cannot share keys and values", shared, n);
  for (size_t i = n - shared; i < n; i++) {
    AttentionSpec& a = attention(spec, i);
    for (size_t j = 0; j < n - shared; j++)  // the last that is like it
      if (attention(spec, j).window == a.window) a.kv_owner = int(j);
    config.require(a.kv_owner >= 0 && attention(spec, size_t(a.kv_owner)).head_dim == a.head_dim,
                   "layer {} has no earlier layer whose keys and values it could share", i);
  }
}

void add_per_layer_inputs(ModelSpec& spec, const Config& config) {
  spec.per_layer = int(config.integer("hidden_size_per_layer_input", 256));
  spec.per_layer_vocab = int(config.integer("vocab_size_per_layer_input", 262144));
}

ModelSpec gemma4_spec(const Config& config) {
  ModelSpec spec = gemma_spec(config, true, 6);
  for (const char* unknown : {"enable_moe_block", "attention_k_eq_v"})
    config.require(!config.boolean(unknown, false), "'{}' is not supported", unknown);
  spec.norm.offset = 0;
  add_per_layer_inputs(spec, config);
  spec.ropes.clear();
  for (size_t i = 0; i < spec.layers.size(); i++) {
    AttentionSpec& a = attention(spec, i);
    a.head_dim = gemma4_head_dim(config, i, a);
    a.scale = 1;
    a.v_norm = true;
    a.rope = spec.add_rope(rope_from(config, a.head_dim, a.window ? "sliding_attention" : "full_attention"));
    spec.layers[i].scaled = true;
  }
  share_last_kv(spec, config, 0);
  if (config.boolean("use_double_wide_mlp", false)) {
    for (size_t i = 0; i < spec.layers.size(); i++) {
      MlpSpec& mlp = std::get<MlpSpec>(spec.layers[i].ffn);
      if (attention(spec, i).kv_owner >= 0) mlp.hidden = config.narrow(2.0 * mlp.hidden, "twice the 'intermediate_size'");
    }
  }
  return spec;
}

NameMap gemma_names() {
  NameMap names = decoder_names();
  std::erase_if(names.entries, [](const NameMap::Entry& e) { return e.role == "ffn_norm"; });
  names.entries.insert(names.entries.end(), {{"mixer_post_norm", "model.layers.{}.post_attention_layernorm"},
                                             {"ffn_norm", "model.layers.{}.pre_feedforward_layernorm"},
                                             {"ffn_post_norm", "model.layers.{}.post_feedforward_layernorm"},
                                             {"per_layer_embedding", "model.embed_tokens_per_layer"},
                                             {"per_layer_projection", "model.per_layer_model_projection"},
                                             {"per_layer_norm", "model.per_layer_projection_norm"},
                                             {"per_layer_gate", "model.layers.{}.per_layer_input_gate"},
                                             {"per_layer_out", "model.layers.{}.per_layer_projection"},
                                             {"per_layer_post_norm", "model.layers.{}.post_per_layer_input_norm"},
                                             {"layer_scale", "model.layers.{}.layer_scalar"}});
  return names;
}

NameMap gemma_gguf_names() {
  NameMap names = decoder_gguf_names();
  names.entries.insert(names.entries.end(), {{"mixer_post_norm", "blk.{}.post_attention_norm"}, {"ffn_post_norm", "blk.{}.post_ffw_norm"}});
  return names;
}

// Scores are scaled by the size of a head, and in the largest model by the width for each of its heads; files do not say so.
static void scale_from_gguf(const Checkpoint& files, Json& json, int64_t layers_of_largest) {
  const Config config(json, files.path().filename().string());
  const int64_t each = config.positive("hidden_size") / config.positive("num_attention_heads");
  json["query_pre_attn_scalar"] = config.layers() == layers_of_largest ? each : config.integer("head_dim", each);
}

void gemma2_from_gguf(const Checkpoint& files, Json& config) { scale_from_gguf(files, config, 46); }

void gemma3_from_gguf(const Checkpoint& files, Json& config) {
  scale_from_gguf(files, config, 62);
  Json global = config.value("rope_parameters", Json::object());  // scaling is for the layers that see everything
  global["rope_theta"] = config.value("rope_theta", Json(1e6));
  const Json local = {{"rope_theta", config.value("rope_local_base_freq", Json(1e4))}};
  config["rope_parameters"] = {{"full_attention", global}, {"sliding_attention", local}};
}

}  // namespace mr
