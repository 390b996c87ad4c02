// Gemma 3n (text): Gemma 3 with several residual streams (AltUp), a learned residual beside attention (Laurel), inputs of every layer's
// own, sparse feed-forwards in the first layers, and last layers that read the keys and values of earlier ones.
#include "model/arch/gemma.h"

namespace mr {

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

}  // namespace mr
