#include "model/per_layer.h"

#include <cmath>
#include <numbers>

#include "model/loader.h"

namespace mr {

PerLayerInputs::PerLayerInputs(const ModelSpec& spec, Loader& loader) : layers_(int64_t(spec.layers.size())), width_(spec.per_layer) {
  table_ = loader.weight("per_layer_embedding", spec.per_layer_vocab, layers_ * width_);
  projection_ = loader.linear({{"per_layer_projection", layers_ * width_}}, spec.dim, false);
  norm_ = loader.norm(spec.norm, "per_layer_norm", spec.per_layer);
}

Value PerLayerInputs::record(Recorder& r, Value embedding) const {
  const float half = 1 / std::numbers::sqrt2_v<float>;
  const Value inputs = r.embed(table_, half * std::sqrt(float(width_)), "per_layer_embedding");
  const Value projected = projection_(r, embedding, 1 / std::sqrt(float(embedding.cols)), ValueType::f32);
  r.norm_in_place(projected.as_heads(int(layers_)), norm_);
  return r.add(inputs, projected, half);
}

PerLayerGate::PerLayerGate(const ModelSpec& spec, BuildContext& build)
    : begin_(int64_t(build.layer) * spec.per_layer),
      width_(spec.per_layer),
      act_(std::get<MlpSpec>(spec.layers[size_t(build.layer)].ffn).activation) {
  gate_ = build.loader.linear({{"per_layer_gate", width_}}, spec.dim, false, build.layer);
  out_ = build.loader.linear({{"per_layer_out", spec.dim}}, width_, false, build.layer);
  norm_ = build.loader.norm(spec.norm, "per_layer_post_norm", spec.dim, build.layer);
}

Value PerLayerGate::record(Recorder& r, Value x, Value inputs) const {
  const Value gate = gate_(r, x);
  r.gate_onto(gate, gate, inputs.columns(begin_, width_), act_);
  const Value y = out_(r, gate);
  r.norm_in_place(y, norm_);
  return y;
}

}  // namespace mr
