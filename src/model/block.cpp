#include "model/block.h"

#include "model/loader.h"

namespace mr {

Block::Block(const LayerSpec& layer, BuildContext& build) : post_norms_(layer.post_norms), residual_scale_(build.spec.residual_scale) {
  auto norm = [&](std::string_view role) { return build.loader.norm(build.spec.norm, role, build.spec.dim, build.layer); };
  mixer_norm_ = norm("mixer_norm");
  mixer_ = make_mixer(layer.mixer, build);
  if (post_norms_) mixer_post_norm_ = norm("mixer_post_norm");
  ffn_ = make_ffn(layer.ffn, build);
  if (ffn_) ffn_norm_ = norm("ffn_norm");
  if (ffn_ && post_norms_) ffn_post_norm_ = norm("ffn_post_norm");
  if (build.spec.per_layer) per_layer_ = std::make_unique<PerLayerGate>(build.spec, build);
  if (layer.laurel) laurel_ = std::make_unique<Laurel>(layer.laurel, build);
  if (build.spec.altup.streams) altup_ = std::make_unique<AltUp>(build);
  if (layer.scaled) scale_ = build.loader.number("layer_scale", build.layer);
}

void Block::compute(Recorder& r, Value residual) const {
  auto add = [&](const auto& part, Value x, const Norm& post_norm) {
    const Value y = part.record(r, x);
    if (post_norms_) r.norm_in_place(y, post_norm);
    r.add(residual, y, residual_scale_);
  };
  const Value x = r.norm(residual, mixer_norm_);
  add(*mixer_, x, mixer_post_norm_);
  if (laurel_) laurel_->record(r, residual, x);
  if (ffn_) add(*ffn_, r.norm(residual, ffn_norm_), ffn_post_norm_);
}

Value Block::record(Recorder& r, Value residual, Value per_layer) const {
  if (altup_) {
    const AltUp::Predicted predicted = altup_->predict(r, residual);
    compute(r, predicted.active);
    altup_->correct(r, predicted);
    if (per_layer_) altup_->add(r, predicted.streams, per_layer_->record(r, altup_->scaled(r, predicted.streams), per_layer));
    return predicted.streams;
  }
  compute(r, residual);
  if (per_layer_) r.add(residual, per_layer_->record(r, residual, per_layer));
  if (scale_ != 1) r.add(residual, residual, scale_ - 1);
  return residual;
}

}  // namespace mr
