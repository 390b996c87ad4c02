// The gated short convolution of LFM2: B, C, x = in(x); y = C * conv(B * x); out(y). Keeps one slot per sequence: the last inputs of
// the convolution.
#include <fmt/format.h>

#include "model/mixers/mixers.h"

namespace mr {

class GatedConv final : public Mixer {
 public:
  GatedConv(const GatedConvSpec& spec, BuildContext& build) : dim_(spec.dim) {
    Loader& load = build.loader;
    in_ = load.linear({{"in", 3 * dim_}}, dim_, spec.bias, build.layer);
    conv_.weight = load.vector("conv", ".weight", {dim_, spec.conv}, build.layer);
    if (spec.bias) conv_.bias = load.vector("conv", ".bias", {dim_}, build.layer);
    out_ = load.linear({{"out", dim_}}, dim_, spec.bias, build.layer);
    conv_.state = {build.layout.add(spec.state(build.types)), 0};
  }

  Value record(Recorder& r, Value x) const override {
    const Value bcx = in_(r, x);
    const Value b = bcx.columns(0, dim_), c = bcx.columns(dim_, dim_), u = bcx.columns(2 * dim_, dim_);
    const Value y = r.short_conv(r.gate(b, u, Activation::none), conv_);
    return out_(r, r.gate(c, y, Activation::none));
  }

 private:
  int64_t dim_;
  Linear in_;       // [3 dim, dim]: B, C, x
  ShortConv conv_;  // of dim
  Linear out_;      // [dim, dim]
};

int64_t GatedConvSpec::parameters(int64_t) const { return int64_t(dim) * (4 * dim + conv + (bias ? 5 : 0)); }

StateSpec GatedConvSpec::state(const StateTypes&) const { return {StateSpec::Kind::slot, conv_slot_bytes(conv, dim)}; }

std::string GatedConvSpec::text(const ModelSpec&) const { return fmt::format("gated convolution {}", conv); }

std::string GatedConvSpec::kind() const { return "gated convolution"; }

std::unique_ptr<Mixer> make(const GatedConvSpec& spec, BuildContext& build) { return std::make_unique<GatedConv>(spec, build); }

}  // namespace mr
