// Mamba-2 (Dao & Gu 2024): like Mamba, but the state of a head is a matrix with one scalar decay, and B, C and dt come
// directly from the input projection. Keeps one slot per sequence: the convolution's last inputs and h [heads, n_state, head_dim].
#include <fmt/format.h>

#include "model/mixers/mixers.h"

namespace mr {

class Mamba2 final : public Mixer {
 public:
  Mamba2(const Mamba2Spec& spec, BuildContext& build) : spec_(spec) {
    Loader& load = build.loader;
    const int64_t inner = spec.inner(), channels = spec.conv_channels();
    in_ = load.linear({{"in", inner + channels + spec.heads}}, build.spec.dim, spec.proj_bias, build.layer);
    conv_ = {load.vector("conv", ".weight", {channels, spec.conv}, build.layer), {}, Activation::silu};
    if (spec.conv_bias) conv_.bias = load.vector("conv", ".bias", {channels}, build.layer);
    dt_bias_ = load.vector("dt_bias", ".weight", {spec.heads}, build.layer);
    norm_ = {Norm::Kind::rms, build.spec.norm.eps, load.vector("gated_norm", ".weight", {inner}, build.layer)};
    out_ = load.linear({{"out", build.spec.dim}}, inner, spec.proj_bias, build.layer);
    Tensor a = load_decay(load, {spec.heads}, build.layer);
    Tensor d = load.vector("d", ".weight", {spec.heads}, build.layer);

    StateRef slot = build.layout.add(spec.state(build.types));
    conv_.state = {slot, 0};
    scan_ = {spec.heads, spec.head_dim, spec.n_state, spec.groups, a, d, spec.dt_min, spec.dt_max, {}};
    scan_.state = {slot, spec.conv_bytes(), build.types.scan};
  }

  Value record(Recorder& r, Value x) const override {
    const int64_t inner = spec_.inner(), channels = spec_.conv_channels(), bc = spec_.groups * spec_.n_state;
    const Value all = in_(r, x);  // the gate z, then x, B and C, then dt
    const Value z = all.columns(0, inner), dt = all.columns(inner + channels, spec_.heads);
    const Value xbc = r.short_conv(all.columns(inner, channels), conv_);
    r.softplus(dt, dt_bias_);
    const Value y = r.outer_scan(xbc.columns(0, inner), dt, xbc.columns(inner, bc), xbc.columns(inner + bc, bc), scan_);
    r.gate_onto(y, z, y, Activation::silu);
    return out_(r, r.norm(y, norm_));
  }

 private:
  Mamba2Spec spec_;
  Linear in_;       // [inner + conv_channels + heads, dim]
  ShortConv conv_;  // of conv_channels
  Tensor dt_bias_;  // [heads]
  Norm norm_;       // over inner, after the gate
  Linear out_;      // [dim, inner]
  OuterScan scan_;
};

int64_t Mamba2Spec::parameters(int64_t dim) const {
  const int64_t in = inner() + conv_channels() + heads;
  return dim * in + int64_t(conv_channels()) * (conv + conv_bias) + 3 * heads + inner() + inner() * dim + (proj_bias ? in + dim : 0);
}

int64_t Mamba2Spec::conv_bytes() const { return conv_slot_bytes(conv, conv_channels()); }

StateSpec Mamba2Spec::state(const StateTypes& types) const {
  return {StateSpec::Kind::slot, conv_bytes() + int64_t(inner()) * n_state * size_of(types.scan)};
}

std::string Mamba2Spec::text(const ModelSpec&) const {
  return fmt::format("Mamba-2, {} heads of {}, state {}, {} group{}, convolution {}", heads, head_dim, n_state, groups,
                     groups == 1 ? "" : "s", conv);
}

std::string Mamba2Spec::kind() const { return "Mamba-2"; }

std::unique_ptr<Mixer> make(const Mamba2Spec& spec, BuildContext& build) { return std::make_unique<Mamba2>(spec, build); }

}  // namespace mr
