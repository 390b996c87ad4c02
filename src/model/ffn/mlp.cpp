// The feed-forward of a block: gated (SwiGLU, Shazeer 2020) or plain. A sparse one (Gemma 3n) keeps of its gate what exceeds the row's
// mean by so many standard deviations that, of a normal distribution, the wanted share would be cut off.
#include <fmt/format.h>

#include <cmath>

#include "model/mixers/mixers.h"

namespace mr {

// Where the distribution function of a normal distribution reaches `share`, in standard deviations from the mean.
static float normal_quantile(double share) {
  double low = -10, high = 10;
  for (int i = 0; i < 60; i++) {
    const double x = (low + high) / 2;
    (std::erfc(-x / std::sqrt(2.0)) / 2 < share ? low : high) = x;
  }
  return float(low);
}

class Mlp final : public Ffn {
 public:
  Mlp(const MlpSpec& spec, BuildContext& build) : spec_(spec) {
    if (build.loader.has("gate_up", build.layer)) {
      up_ = build.loader.linear({{"gate_up", 2 * spec.hidden}}, build.spec.dim, spec.bias, build.layer);
    } else if (spec.gated) {
      up_ = build.loader.linear({{"gate", spec.hidden}, {"up", spec.hidden}}, build.spec.dim, spec.bias, build.layer);
    } else {
      up_ = build.loader.linear({{"up", spec.hidden}}, build.spec.dim, spec.bias, build.layer);
    }
    down_ = build.loader.linear({{"down", build.spec.dim}}, spec.hidden, spec.bias, build.layer);
    if (spec.sparsity > 0) {
      const Tensor below = build.loader.filled(spec.hidden, -normal_quantile(spec.sparsity));
      cut_ = {.kind = Norm::Kind::layer, .eps = 1e-30f, .bias = below};
    }
  }

  Value record(Recorder& r, Value x) const override {
    Value h = up_(r, x);
    if (spec_.sparsity > 0) cut(r, h.columns(0, spec_.hidden));
    if (spec_.gated) {
      h = r.gate(h.columns(0, spec_.hidden), h.columns(spec_.hidden, spec_.hidden), spec_.activation);
    } else {
      r.activate(h, spec_.activation);
    }
    return down_(r, h);
  }

 private:
  // x = max(0, x - (mean + quantile * deviation)), the deviation taken out and put back.
  void cut(Recorder& r, Value x) const {
    const Value deviation = r.magnitude(x, {.centered = true});
    r.norm_in_place(x, cut_);
    r.activate(x, Activation::relu);
    r.mix_onto(x, x, 1, deviation, false);
  }

  MlpSpec spec_;
  Linear up_;    // [2 hidden, dim]: gate, then up; plain: [hidden, dim]
  Linear down_;  // [dim, hidden]
  Norm cut_;
};

int64_t MlpSpec::parameters(int64_t dim, bool) const {
  return (gated ? 3 : 2) * dim * hidden + (bias ? (gated ? 2 : 1) * hidden + dim : 0);
}

std::string MlpSpec::text() const {
  const std::string cut = sparsity > 0 ? fmt::format(", {:g} % of the gate cut off", 100 * sparsity) : "";
  return fmt::format("{}feed-forward {}{}", gated ? "gated " : "", hidden, cut);
}

std::unique_ptr<Ffn> make(const MlpSpec& spec, BuildContext& build) { return std::make_unique<Mlp>(spec, build); }

}  // namespace mr
