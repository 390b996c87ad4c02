// Gemma 3n (text): Gemma 3 with several residual streams (AltUp), a learned residual beside attention (Laurel), inputs of every layer's
// own, sparse feed-forwards in the first layers, and last layers that read the keys and values of earlier ones.
#include <cmath>

#include "model/arch/gemma.h"

namespace mr {

NameMap gemma_gguf_names();
void gemma3_from_gguf(const Checkpoint&, Json&);

static std::vector<float> sparsities(const Config& config, size_t layers) {
  std::vector<float> each = config.numbers("activation_sparsity_pattern");
  if (each.empty()) {
    each.assign(layers, 0.0f);
    if (layers > 10) std::fill_n(each.begin(), 10, 0.95f);
  }
  config.require(each.size() == layers, "'activation_sparsity_pattern' has {} entries for {} layers", each.size(), layers);
  return each;
}

ModelSpec gemma3n_spec(const Config& config) {
  ModelSpec spec = gemma3_spec(config, 5);
  spec.norm.offset = 0;
  spec.logit_softcap = float(config.number("final_logit_softcapping", 30));
  spec.altup = {.streams = int(config.integer("altup_num_inputs", 4)),
                .active = int(config.integer("altup_active_idx", 0)),
                .scaled = config.boolean("altup_correct_scale", true)};
  config.require(spec.altup.streams > 0, "'altup_num_inputs' must not be 0");
  add_per_layer_inputs(spec, config);
  const std::vector<float> sparsity = sparsities(config, spec.layers.size());
  for (size_t i = 0; i < spec.layers.size(); i++) {
    LayerSpec& layer = spec.layers[i];
    AttentionSpec& a = std::get<AttentionSpec>(layer.mixer);
    a.scale = 1;
    a.v_norm = true;
    layer.laurel = int(config.integer("laurel_rank", 64));
    std::get<MlpSpec>(layer.ffn).sparsity = sparsity[i];
  }
  share_last_kv(spec, config, 15);
  return spec;
}

NameMap gemma3n_names() {
  NameMap names = gemma_names();
  names.entries.insert(names.entries.end(), {{"altup_in", "model.altup_projections.{}"},
                                             {"altup_out", "model.altup_unembed_projections.{}"},
                                             {"altup_norm", "model.layers.{}.altup.router_norm"},
                                             {"altup_router", "model.layers.{}.altup.modality_router"},
                                             {"altup_predict", "model.layers.{}.altup.prediction_coefs"},
                                             {"altup_correct", "model.layers.{}.altup.correction_coefs"},
                                             {"altup_scale", "model.layers.{}.altup.correct_output_scale"},
                                             {"laurel_left", "model.layers.{}.laurel.linear_left"},
                                             {"laurel_right", "model.layers.{}.laurel.linear_right"},
                                             {"laurel_norm", "model.layers.{}.laurel.post_laurel_norm"}});
  return names;
}

NameMap gemma3n_gguf_names() {
  NameMap names = gemma_gguf_names();
  names.entries.insert(names.entries.end(), {{"per_layer_embedding", "per_layer_token_embd"},
                                             {"per_layer_projection", "per_layer_model_proj"},
                                             {"per_layer_norm", "per_layer_proj_norm"},
                                             {"per_layer_gate", "blk.{}.inp_gate"},
                                             {"per_layer_out", "blk.{}.proj"},
                                             {"per_layer_post_norm", "blk.{}.post_norm"},
                                             {"altup_in", "altup_proj"},
                                             {"altup_out", "altup_unembd_proj"},
                                             {"altup_norm", "blk.{}.altup_router_norm"},
                                             {"altup_router", "blk.{}.altup_router"},
                                             {"altup_predict", "blk.{}.altup_predict_coef"},
                                             {"altup_correct", "blk.{}.altup_correct_coef"},
                                             {"altup_scale", "blk.{}.altup_correct_scale"},
                                             {"laurel_left", "blk.{}.laurel_l"},
                                             {"laurel_right", "blk.{}.laurel_r"},
                                             {"laurel_norm", "blk.{}.laurel_post_norm"}});
  return names;
}

static int64_t rows_of(const Checkpoint& files, const char* name) {
  const StoredTensor& t = files.get(name);
  check(t.shape.size() == 2, "{} has shape {}, but must have 2 dimensions", name, shape_string(t.shape));
  return t.shape[0];
}

// Sizes that only the tensors say; and the sparsity is stored as the quantile that it stands for, -infinity for none.
void gemma3n_from_gguf(const Checkpoint& files, Json& json) {
  gemma3_from_gguf(files, json);
  const Config config(json, files.path().filename().string());
  json["laurel_rank"] = rows_of(files, "blk.0.laurel_l.weight");
  json["vocab_size_per_layer_input"] = rows_of(files, "per_layer_token_embd.weight");
  if (!config.has("num_kv_shared_layers")) json["num_kv_shared_layers"] = std::max<int64_t>(config.layers() - 20, 0);
  if (!config.has("activation_sparsity_scale")) return;
  const Json& quantiles = json["activation_sparsity_scale"];
  config.require(quantiles.is_array() && int64_t(quantiles.size()) == config.layers(),
                 "'activation_sparsity_scale' must be a list of a number for each of {} layers", config.layers());
  Json shares = Json::array();
  for (const Json& x : quantiles) {
    config.require(x.is_number(), "'activation_sparsity_scale' must be a list of numbers");
    shares.push_back(std::erfc(-x.get<double>() / std::sqrt(2.0)) / 2);
  }
  json["activation_sparsity_pattern"] = shares;
}

}  // namespace mr
