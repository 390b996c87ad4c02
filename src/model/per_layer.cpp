#include "model/per_layer.h"

#include <cmath>
#include <numbers>

#include "model/loader.h"

namespace mr {

PerLayerInputs::PerLayerInputs(const ModelSpec& spec, Loader& loader) : layers_(int64_t(spec.layers.size())), width_(spec.per_layer) {
  table_ = loader.weight("per_layer_embedding", spec.vocab, layers_ * width_);
  projection_ = loader.linear({{"per_layer_projection", layers_ * width_}}, spec.dim, false);
  norm_ = loader.norm(spec.norm, "per_layer_norm", spec.per_layer);
}

Tensor PerLayerInputs::forward(Tensor embedding, Step& step) const {
  const int64_t rows = embedding.shape[0];
  const float half = 1 / std::numbers::sqrt2_v<float>;
  Tensor out = step.arena.tensor(DType::f32, {rows, layers_ * width_});
  step.ops.embed(out, table_, half * std::sqrt(float(width_)), step.batch);
  ArenaScope scope(step.arena);
  Tensor projected = step.arena.tensor(DType::f32, {rows, layers_ * width_});
  projection_.into(projected, embedding, step, {.scale = 1 / std::sqrt(float(embedding.shape[1]))});
  Tensor by_layer = projected.reshape({rows, layers_, width_});
  step.ops.norm(by_layer, by_layer, norm_);
  step.ops.add(out, projected, half);
  return out;
}

int64_t PerLayerInputs::workspace(int64_t rows) const { return 2 * arena_bytes(rows * layers_ * width_); }

PerLayerGate::PerLayerGate(const ModelSpec& spec, BuildContext& build)
    : begin_(int64_t(build.layer) * spec.per_layer), width_(spec.per_layer) {
  gate_ = build.loader.linear({{"per_layer_gate", width_}}, spec.dim, false, build.layer);
  out_ = build.loader.linear({{"per_layer_out", spec.dim}}, width_, false, build.layer);
  norm_ = build.loader.norm(spec.norm, "per_layer_post_norm", spec.dim, build.layer);
}

void PerLayerGate::forward(Stream& s, Step& step) const {
  ArenaScope scope(step.arena);
  Tensor gate = gate_(s.residual, step);
  step.ops.gate(gate, gate, s.per_layer.cols(begin_, width_), Activation::gelu_tanh);
  Tensor y = out_(gate, step);
  step.ops.norm(y, y, norm_);
  step.ops.add(s.residual, y, 1);
}

int64_t PerLayerGate::workspace(int64_t rows) const { return arena_bytes(rows * width_) + arena_bytes(rows * out_.out()); }

}  // namespace mr
