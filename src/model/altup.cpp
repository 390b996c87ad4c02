#include "model/altup.h"

#include "model/loader.h"

namespace mr {

Streams::Streams(const ModelSpec& spec, Loader& loader) : n_(spec.altup.streams), dim_(spec.dim) {
  for (int i = 0; i < n_ - 1; i++) {
    in_.push_back(loader.linear({{"altup_in", dim_}}, dim_, false, i));
    out_.push_back(loader.linear({{"altup_out", dim_}}, dim_, false, i));
  }
}

// out = (add: +=) x, brought to the magnitude that is given.
static void match(Recorder& r, Value out, Value x, Value magnitude, bool add) {
  const Value factor = r.magnitude(x, {.floor = 1e-5f, .inverse = true});
  r.gate_onto(factor, factor, magnitude, Activation::none);
  r.mix_onto(out, x, 1, factor, add);
}

Value Streams::split(Recorder& r, Value embedding) const {
  const Value streams = embedding.columns(0, n_ * dim_), magnitude = r.magnitude(embedding, {});
  for (int i = 1; i < n_; i++)
    match(r, streams.columns(i * dim_, dim_), in_[size_t(i - 1)](r, embedding, 1, ValueType::f32), magnitude, false);
  return streams;
}

Value Streams::join(Recorder& r, Value streams) const {
  const Value sum = streams.columns(0, dim_), magnitude = r.magnitude(sum, {});
  for (int i = 1; i < n_; i++) match(r, sum, out_[size_t(i - 1)](r, streams.columns(i * dim_, dim_), 1, ValueType::f32), magnitude, true);
  return r.add(sum, sum, 1 / float(n_) - 1);
}

int64_t AltUpSpec::parameters(int64_t dim) const {
  const int64_t n = streams;
  return n ? n * dim + n * n * n + n * n + dim : 0;
}

AltUp::AltUp(BuildContext& build) : spec_(build.spec.altup), dim_(build.spec.dim) {
  Loader& load = build.loader;
  const int n = spec_.streams;
  norm_ = load.norm(build.spec.norm, "altup_norm", dim_, build.layer);
  scale_ = {.kind = Norm::Kind::none, .weight = load.vector("altup_scale", ".weight", {dim_}, build.layer)};
  router_ = load.linear({{"altup_router", n}}, dim_, false, build.layer);
  // Coefficients add to what a stream was: 1 of itself, and of what was missed.
  std::vector<float> itself(size_t(n * n), 0.0f);
  for (int i = 0; i < n; i++) itself[size_t(i * n + i)] = 1;
  predict_ = {"altup_predict", {load.weight("altup_predict", n * n, n, build.layer)}, load.place(itself, {n * n})};
  correct_ = {"altup_correct", {load.weight("altup_correct", n, n, build.layer)}, load.filled(n, 1)};
}

Value AltUp::modes(Recorder& r, Value x) const {
  const Value y = router_(r, r.norm(x, norm_), 1 / float(dim_), ValueType::f32);
  r.softcap(y, 1);  // tanh
  return y;
}

AltUp::Predicted AltUp::predict(Recorder& r, Value streams) const {
  const int n = spec_.streams;
  const Value coefficients = predict_(r, modes(r, stream(streams, spec_.active)), 1, ValueType::f32);
  return {r.mix(streams, n, coefficients), r.mix(streams, n, coefficients.columns(spec_.active * n, n))};
}

void AltUp::correct(Recorder& r, const Predicted& p) const {
  const Value coefficients = correct_(r, modes(r, p.active), 1, ValueType::f32);
  const Value missed = r.add(p.active, stream(p.streams, spec_.active), -1);
  r.mix_onto(p.streams, missed, 1, coefficients, true);
}

Value AltUp::scaled(Recorder& r, Value streams) const {
  const Value active = stream(streams, spec_.active);
  return spec_.scaled ? r.norm(active, scale_) : active;
}

void AltUp::add(Recorder& r, Value streams, Value y) const {
  for (int i = 1; i < spec_.streams; i++) r.add(stream(streams, i), y);
}

}  // namespace mr
