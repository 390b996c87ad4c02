// Mamba (Gu & Dao 2023): a short convolution, then a diagonal state-space model whose dt, B and C are functions of the
// input. Keeps one slot per sequence: the convolution's last inputs and h [inner, n_state]. Falcon-Mamba and Jamba
// normalize dt, B and C.
#include <fmt/format.h>

#include "model/mixers/mixers.h"

namespace mr {

class Mamba final : public Mixer {
 public:
  Mamba(const MambaSpec& spec, BuildContext& build) : spec_(spec) {
    Loader& load = build.loader;
    const int64_t inner = spec.inner;
    in_ = load.linear({{"in", 2 * inner}}, build.spec.dim, spec.proj_bias, build.layer);
    conv_ = {load.vector("conv", ".weight", {inner, spec.conv}, build.layer), {}, Activation::silu};
    if (spec.conv_bias) conv_.bias = load.vector("conv", ".bias", {inner}, build.layer);
    x_ = load.weight("x", spec.dt_rank + 2 * spec.n_state, inner, build.layer);
    dt_ = load.weight("dt", inner, spec.dt_rank, build.layer);
    dt_bias_ = load.vector("dt", ".bias", {inner}, build.layer);
    out_ = load.linear({{"out", build.spec.dim}}, inner, spec.proj_bias, build.layer);
    scan_ = {spec.inner,
             spec.n_state,
             load_decay(load, {inner, spec.n_state}, build.layer),
             load.vector("d", ".weight", {inner}, build.layer),
             {}};
    dt_norm_ = inner_norm("dt_norm", spec.dt_rank, build);
    b_norm_ = inner_norm("b_norm", spec.n_state, build);
    c_norm_ = inner_norm("c_norm", spec.n_state, build);

    StateRef slot = build.layout.add(spec.state(build.types));
    conv_.state = {slot, 0};
    scan_.state = {slot, spec.conv_bytes(), build.types.scan};
  }

  Value record(Recorder& r, Value x) const override {
    const int64_t inner = spec_.inner, rank = spec_.dt_rank, n = spec_.n_state;
    const Value xz = in_(r, x);
    const Value u = r.short_conv(xz.columns(0, inner), conv_);
    const Value dbc = r.linear(u, {&x_, 1}, {"x"});
    const Value low = dbc.columns(0, rank), b = dbc.columns(rank, n), c = dbc.columns(rank + n, n);
    if (spec_.norms != MambaSpec::Norms::none) {
      r.norm_in_place(low, dt_norm_);
      r.norm_in_place(b, b_norm_);
      r.norm_in_place(c, c_norm_);
    }
    const Value dt = r.linear(low, {&dt_, 1}, {.name = "dt", .type = ValueType::f32});  // an exponent: bf16 would be too coarse
    r.softplus(dt, dt_bias_);
    const Value y = r.diag_scan(u, dt, b, c, scan_);
    r.gate_onto(y, xz.columns(inner, inner), y, Activation::silu);
    return out_(r, y);
  }

 private:
  Norm inner_norm(std::string_view role, int dim, BuildContext& build) const {
    bool weighted = spec_.norms == MambaSpec::Norms::weighted;
    return {Norm::Kind::rms, spec_.norm_eps, weighted ? build.loader.vector(role, ".weight", {dim}, build.layer) : Tensor{}};
  }

  MambaSpec spec_;
  Linear in_;       // [2 inner, dim]: x, then the gate z
  ShortConv conv_;  // of inner
  Weight x_, dt_;   // [dt_rank + 2 n_state, inner], [inner, dt_rank]
  Tensor dt_bias_;  // f32 [inner]
  Norm dt_norm_, b_norm_, c_norm_;
  Linear out_;  // [dim, inner]
  DiagScan scan_;
};

int64_t MambaSpec::parameters(int64_t dim) const {
  const int64_t n = inner, dbc = dt_rank + 2 * n_state;
  return dim * 2 * n + n * conv + n * dbc + dt_rank * n + n + n * n_state + n + n * dim + (conv_bias ? n : 0) +
         (proj_bias ? 2 * n + dim : 0) + (norms == Norms::weighted ? dbc : 0);
}

int64_t MambaSpec::conv_bytes() const { return conv_slot_bytes(conv, inner); }

StateSpec MambaSpec::state(const StateTypes& types) const {
  return {StateSpec::Kind::slot, conv_bytes() + int64_t(inner) * n_state * size_of(types.scan)};
}

std::string MambaSpec::text(const ModelSpec&) const {
  return fmt::format("Mamba, inner {}, state {}, convolution {}", inner, n_state, conv);
}

std::string MambaSpec::kind() const { return "Mamba"; }

std::unique_ptr<Mixer> make(const MambaSpec& spec, BuildContext& build) { return std::make_unique<Mamba>(spec, build); }

}  // namespace mr
