#include "model/block.h"

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

void Block::record(Recorder& r, Value residual, Value per_layer) const {
  auto add = [&](const auto& part, const Norm& norm, const Norm& post_norm) {
    const Value y = part.record(r, r.norm(residual, norm));
    if (post_norms_) r.norm_in_place(y, post_norm);
    r.add(residual, y);
  };
  add(*mixer_, mixer_norm_, mixer_post_norm_);
  if (ffn_) add(*ffn_, ffn_norm_, ffn_post_norm_);
  if (per_layer_) per_layer_->record(r, residual, per_layer);
  if (scale_ != 1) r.add(residual, residual, scale_ - 1);
}

}  // namespace mr
