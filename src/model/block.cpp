#include "model/block.h"

#include <algorithm>

#include "model/loader.h"

namespace mr {

Block::Block(const LayerSpec& layer, BuildContext& build) : post_norms_(layer.post_norms) {
  auto norm = [&](std::string_view role) { return build.loader.norm(build.spec.norm, role, build.spec.dim, build.layer); };
  mixer_norm_ = norm("mixer_norm");
  mixer_ = make_mixer(layer.mixer, build);
  if (post_norms_) mixer_post_norm_ = norm("mixer_post_norm");
  ffn_ = make_ffn(layer.ffn, build);
  if (ffn_) ffn_norm_ = norm("ffn_norm");
  if (ffn_ && post_norms_) ffn_post_norm_ = norm("ffn_post_norm");
  if (build.spec.per_layer) per_layer_ = std::make_unique<PerLayerGate>(build.spec, build);
  if (layer.scaled) scale_ = build.loader.number("layer_scale", build.layer);
}

static Tensor normed(Tensor x, const Norm& norm, Step& step) {
  Tensor y = step.arena.tensor(DType::f32, {x.shape[0], x.shape[1]});
  step.ops.norm(y, x, norm);
  return y;
}

void Block::forward(Stream& s, Step& step) const {
  {
    ArenaScope scope(step.arena);
    Tensor y = mixer_->forward(normed(s.residual, mixer_norm_, step), step);
    if (post_norms_) step.ops.norm(y, y, mixer_post_norm_);
    step.ops.add(s.residual, y, 1);
  }
  if (ffn_) {
    ArenaScope scope(step.arena);
    Tensor y = ffn_->forward(normed(s.residual, ffn_norm_, step), step);
    if (post_norms_) step.ops.norm(y, y, ffn_post_norm_);
    step.ops.add(s.residual, y, 1);
  }
  if (per_layer_) per_layer_->forward(s, step);
  if (scale_ != 1) step.ops.add(s.residual, s.residual, scale_ - 1);
}

int64_t Block::workspace(int64_t rows) const {
  int64_t norm = arena_bytes(rows * mixer_norm_.weight.size());
  return std::max(norm + std::max(mixer_->workspace(rows), ffn_ ? ffn_->workspace(rows) : 0), per_layer_ ? per_layer_->workspace(rows) : 0);
}

int64_t Block::decode_bytes() const {
  return mixer_->decode_bytes() + (ffn_ ? ffn_->decode_bytes() : 0) + (per_layer_ ? per_layer_->decode_bytes() : 0);
}

}  // namespace mr
