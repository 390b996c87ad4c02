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
    conv_ = {load.vector("conv", ".weight", {inner, spec.conv}, build.layer), {}, Activation::silu};
    if (spec.conv_bias) conv_.bias = load.vector("conv", ".bias", {inner}, build.layer);
    x_ = load.weight("x", spec.dt_rank + 2 * spec.n_state, inner, build.layer);
    dt_ = load.weight("dt", inner, spec.dt_rank, build.layer);
    select_.norms = spec.norms != MambaSpec::Norms::none;
    select_.dt_bias = load.vector("dt", ".bias", {inner}, build.layer);
    out_ = load.linear({{"out", build.spec.dim}}, inner, spec.proj_bias, build.layer);
    scan_ = {spec.inner, spec.n_state, decay(load, build.layer), load.vector("d", ".weight", {inner}, build.layer), {}};
    select_.dt_norm = inner_norm("dt_norm", spec.dt_rank, build);
    select_.b_norm = inner_norm("b_norm", spec.n_state, build);
    select_.c_norm = inner_norm("c_norm", spec.n_state, build);
    select_.x = &x_, select_.low = &dt_;

    StateRef slot = build.layout.add(state_of(spec, build.kv_dtype));
    conv_.state = {slot, 0};
    scan_.state = {slot, conv_state_bytes(spec)};
  }

  void forward(Tensor out, const Input& x, const Epilogue& epilogue, Step& step) const override {
    const int64_t rows = x.rows(), inner = spec_.inner;
    Tensor xz = step.activation({rows, 2 * inner}), u = step.activation({rows, inner}), y = step.activation({rows, inner});
    in_.into_conv(xz, x, u, 0, conv_, step);
    step.ops.selective_scan(y, u, xz.cols(inner, inner), select_, scan_, step.batch, step.state, step.arena);
    y = step.rows_of(out, y);
    if (out.shape[0] > 0) out_.into(out, y, step, epilogue);
  }

  int64_t workspace(int64_t rows) const override {
    return arena_bytes(rows * in_.out()) + 2 * arena_bytes(rows * spec_.inner) + arena_bytes(rows * x_.out) + arena_bytes(rows * dt_.out);
  }
  int64_t decode_bytes() const override {
    return in_.bytes() + x_.bytes() + dt_.bytes() + out_.bytes() + conv_.weight.bytes() + scan_.a.bytes();
  }

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
  Linear in_;       // [2 inner, dim]: x, then the gate z
  ShortConv conv_;  // of inner
  Weight x_, dt_;   // [dt_rank + 2 n_state, inner], [inner, dt_rank]
  Selection select_;
  Linear out_;  // [dim, inner]
  DiagScan scan_;
};

std::unique_ptr<Mixer> make_mamba(const MambaSpec& spec, BuildContext& build) { return std::make_unique<Mamba>(spec, build); }

}  // namespace mr
