// Mamba (Gu & Dao 2023): a short convolution, then a diagonal state-space model whose step, input and output are chosen by
// the input. Keeps one slot a sequence: the convolution's last inputs and h [inner, n_state]. Falcon-Mamba and Jamba put
// norms on dt, B and C.
#include "model/mixers/mixers.h"

namespace mr {

class Mamba final : public Mixer {
 public:
  Mamba(const MambaSpec& spec, BuildContext& build) : spec_(spec) {
    Loader& load = build.loader;
    const int64_t inner = spec.inner;
    in_ = load.linear({{"in", 2 * inner}}, build.spec.dim, spec.proj_bias, build.layer);
    conv_ = load.vector("conv", ".weight", {inner, spec.conv}, build.layer);
    if (spec.conv_bias) conv_bias_ = load.vector("conv", ".bias", {inner}, build.layer);
    x_ = load.linear({{"x", spec.dt_rank + 2 * spec.n_state}}, inner, false, build.layer);
    dt_ = load.linear({{"dt", inner}}, spec.dt_rank, false, build.layer);
    dt_bias_ = load.vector("dt", ".bias", {inner}, build.layer);
    out_ = load.linear({{"out", build.spec.dim}}, inner, spec.proj_bias, build.layer);
    scan_ = {spec.inner, spec.n_state, decay(load, build.layer), load.vector("d", ".weight", {inner}, build.layer), {}};
    dt_norm_ = inner_norm("dt_norm", spec.dt_rank, build);
    b_norm_ = inner_norm("b_norm", spec.n_state, build);
    c_norm_ = inner_norm("c_norm", spec.n_state, build);

    StateRef slot = build.layout.add(state_of(spec, build.kv_dtype));
    conv_state_ = {slot, 0};
    scan_.state = {slot, conv_state_bytes(spec)};
  }

  void forward(Tensor out, const Input& x, const Epilogue& epilogue, Step& step) const override {
    Backend& ops = step.ops;
    const int64_t rows = x.rows(), inner = spec_.inner;
    Tensor xz = in_(x, step);
    Tensor u = step.activation({rows, inner});
    ops.short_conv(u, xz.cols(0, inner), conv_, conv_bias_, Activation::silu, conv_state_, step.batch, step.state);
    Tensor dbc = x_(u, step);  // dt_rank, then B, then C
    Tensor low = dbc.cols(0, spec_.dt_rank), b = dbc.cols(spec_.dt_rank, spec_.n_state),
           c = dbc.cols(spec_.dt_rank + spec_.n_state, spec_.n_state);
    if (spec_.norms != MambaSpec::Norms::none) {
      ops.norm(low, low, dt_norm_);
      ops.norm(b, b, b_norm_);
      ops.norm(c, c, c_norm_);
    }
    Tensor dt = step.arena.tensor(DType::f32, {rows, inner});  // an exponent: 8 bits of it would be too few
    dt_.into(dt, low, step);
    Tensor y = step.activation({rows, inner});
    ops.diag_scan_gated(y, u, dt, dt_bias_, b, c, xz.cols(inner, inner), scan_, step.batch, step.state);
    out_.into(out, y, step, epilogue);
  }

  int64_t workspace(int64_t rows) const override {
    return arena_bytes(rows * in_.out()) + 2 * arena_bytes(rows * spec_.inner) + arena_bytes(rows * x_.out()) +
           arena_bytes(rows * dt_.out());
  }
  int64_t decode_bytes() const override { return in_.bytes() + x_.bytes() + dt_.bytes() + out_.bytes() + conv_.bytes() + scan_.a.bytes(); }

 private:
  // A = -exp(A_log); GGUF files store A itself.
  Tensor decay(Loader& load, int layer) const {
    bool logarithm = load.has("a_log", layer);
    return load.vector(logarithm ? "a_log" : "a", ".weight", {spec_.inner, spec_.n_state}, layer, logarithm ? minus_exp : nullptr);
  }

  Norm inner_norm(std::string_view role, int dim, BuildContext& build) const {
    bool weighted = spec_.norms == MambaSpec::Norms::weighted;
    return {Norm::Kind::rms, spec_.norm_eps, weighted ? build.loader.vector(role, ".weight", {dim}, build.layer) : Tensor{}};
  }

  MambaSpec spec_;
  Linear in_;         // [2 inner, dim]: x, then the gate z
  Tensor conv_;       // [inner, conv]
  Tensor conv_bias_;  // [inner]
  Linear x_;          // [dt_rank + 2 n_state, inner]
  Linear dt_;         // [inner, dt_rank]
  Tensor dt_bias_;    // [inner]
  Linear out_;        // [dim, inner]
  Norm dt_norm_, b_norm_, c_norm_;
  SlotState conv_state_;
  DiagScan scan_;
};

std::unique_ptr<Mixer> make_mamba(const MambaSpec& spec, BuildContext& build) { return std::make_unique<Mamba>(spec, build); }

}  // namespace mr
