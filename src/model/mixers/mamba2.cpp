// Mamba-2 (Dao & Gu 2024): like Mamba, but the state of a head is a matrix that decays as one, so that B, C and the step come
// straight from the input. Keeps one slot a sequence: the convolution's last inputs and h [heads, n_state, head_dim].
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
    Tensor a = load.vector("a_log", ".weight", {spec.heads}, build.layer, minus_exp);
    Tensor d = load.vector("d", ".weight", {spec.heads}, build.layer);

    StateRef slot = build.layout.add(state_of(spec, build.kv_dtype));
    conv_.state = {slot, 0};
    scan_ = {spec.heads, spec.head_dim, spec.n_state, spec.groups, a, d, spec.dt_min, spec.dt_max, {slot, conv_state_bytes(spec)}};
  }

  void forward(Tensor out, const Input& x, const Epilogue& epilogue, Step& step) const override {
    Backend& ops = step.ops;
    const int64_t rows = x.rows(), inner = spec_.inner(), channels = spec_.conv_channels(), bc = spec_.groups * spec_.n_state;
    Tensor all = step.activation({rows, in_.out()});  // the gate z, then x, B and C, then dt
    Tensor z = all.cols(0, inner), dt = all.cols(inner + channels, spec_.heads);
    Tensor xbc = step.activation({rows, channels});
    in_.into_conv(all, x, xbc, inner, conv_, step);
    Tensor y = step.activation({rows, inner});
    ops.outer_scan_gated(y, xbc.cols(0, inner), dt, dt_bias_, xbc.cols(inner, bc), xbc.cols(inner + bc, bc), z, scan_, step.batch,
                         step.state, &norm_);
    y = step.rows_of(out, y);
    if (out.shape[0] > 0) out_.into(out, {y, norm_}, step, epilogue);
  }

  int64_t workspace(int64_t rows) const override {
    return arena_bytes(rows * in_.out()) + arena_bytes(rows * spec_.conv_channels()) + 2 * arena_bytes(rows * spec_.inner());
  }
  int64_t decode_bytes() const override { return in_.bytes() + out_.bytes() + conv_.weight.bytes(); }

 private:
  Mamba2Spec spec_;
  Linear in_;       // [inner + conv_channels + heads, dim]
  ShortConv conv_;  // of conv_channels
  Tensor dt_bias_;  // [heads]
  Norm norm_;       // over inner, after the gate
  Linear out_;      // [dim, inner]
  OuterScan scan_;
};

std::unique_ptr<Mixer> make_mamba2(const Mamba2Spec& spec, BuildContext& build) { return std::make_unique<Mamba2>(spec, build); }

}  // namespace mr
