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

// residual += part(x), with another norm before the sum where the family has one. next: how it is read after this.
template <class Part>
static void add_to(Tensor residual, const Part& part, const Input& x, const Norm* post_norm, const Norm* next, Step& step) {
  ArenaScope scope(step.arena);
  if (!post_norm) return part.forward(residual, x, {.residual = residual, .next = next}, step);
  Tensor y = step.activation({residual.shape[0], residual.shape[1]});
  part.forward(y, x, {}, step);
  if (y.shape[0] == 0) return;
  step.ops.norm(y, y, *post_norm);
  step.ops.add(residual, y, 1);
}

void Block::forward(Stream& s, Step& step, const Norm* next) const {
  if (per_layer_ || scale_ != 1) next = nullptr;
  const Input x(s.residual, mixer_norm_);
  if (s.ends) s.residual = step.outputs(s.residual);
  add_to(s.residual, *mixer_, x, post_norms_ ? &mixer_post_norm_ : nullptr, ffn_ ? &ffn_norm_ : next, step);
  if (s.residual.shape[0] == 0) return;
  if (ffn_) add_to(s.residual, *ffn_, {s.residual, ffn_norm_}, post_norms_ ? &ffn_post_norm_ : nullptr, next, step);
  if (per_layer_) per_layer_->forward(s, step);
  if (scale_ != 1) step.ops.add(s.residual, s.residual, scale_ - 1);
}

int64_t Block::workspace(int64_t rows) const {
  int64_t norms = (post_norms_ ? 2 : 1) * arena_bytes(rows * mixer_norm_.weight.size());
  return std::max(norms + std::max(mixer_->workspace(rows), ffn_ ? ffn_->workspace(rows) : 0),
                  per_layer_ ? per_layer_->workspace(rows) : 0);
}

int64_t Block::decode_bytes() const {
  return mixer_->decode_bytes() + (ffn_ ? ffn_->decode_bytes() : 0) + (per_layer_ ? per_layer_->decode_bytes() : 0);
}

}  // namespace mr
