// The feed-forward of a block: gated (SwiGLU, Shazeer 2020) or plain.
#include <fmt/format.h>

#include "model/mixers/mixers.h"

namespace mr {

class Mlp final : public Ffn {
 public:
  Mlp(const MlpSpec& spec, BuildContext& build) : spec_(spec) {
    if (spec.gated) {
      up_ = build.loader.linear({{"gate", spec.hidden}, {"up", spec.hidden}}, build.spec.dim, spec.bias, build.layer);
    } else {
      up_ = build.loader.linear({{"up", spec.hidden}}, build.spec.dim, spec.bias, build.layer);
    }
    down_ = build.loader.linear({{"down", build.spec.dim}}, spec.hidden, spec.bias, build.layer);
  }

  Value record(Recorder& r, Value x) const override {
    Value h = up_(r, x);
    if (spec_.gated) {
      h = r.gate(h.columns(0, spec_.hidden), h.columns(spec_.hidden, spec_.hidden), spec_.activation);
    } else {
      r.activate(h, spec_.activation);
    }
    return down_(r, h);
  }

 private:
  MlpSpec spec_;
  Linear up_;    // [2 hidden, dim]: gate, then up; plain: [hidden, dim]
  Linear down_;  // [dim, hidden]
};

int64_t MlpSpec::parameters(int64_t dim, bool) const {
  return (gated ? 3 : 2) * dim * hidden + (bias ? (gated ? 2 : 1) * hidden + dim : 0);
}

std::string MlpSpec::text() const { return fmt::format("{}feed-forward {}", gated ? "gated " : "", hidden); }

std::unique_ptr<Ffn> make(const MlpSpec& spec, BuildContext& build) { return std::make_unique<Mlp>(spec, build); }

}  // namespace mr
