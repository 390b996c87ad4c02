// The feed-forward of a block: gated (SwiGLU, Shazeer 2020) or plain.
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

  void forward(Tensor out, const Input& x, const Epilogue& epilogue, Step& step) const override {
    if (spec_.gated) down_.announce(step);
    Tensor h = spec_.gated ? up_.gated(x, spec_.activation, step) : up_(x, step);
    if (!spec_.gated) step.ops.activate(h, spec_.activation);
    down_.into(out, h, step, epilogue);
  }

  int64_t workspace(int64_t rows) const override { return arena_bytes(rows * up_.out()) + arena_bytes(rows * spec_.hidden); }
  int64_t decode_bytes() const override { return up_.bytes() + down_.bytes(); }

 private:
  MlpSpec spec_;
  Linear up_;    // [2 hidden, dim]: gate, then up; plain: [hidden, dim]
  Linear down_;  // [dim, hidden]
};

std::unique_ptr<Ffn> make_mlp(const MlpSpec& spec, BuildContext& build) { return std::make_unique<Mlp>(spec, build); }

}  // namespace mr
