// A mixture of experts (Shazeer et al. 2017; Mixtral): a router chooses a few gated feed-forwards for every token, and their
// results are added by its weights. No token is ever dropped.
#include "model/mixers/mixers.h"

namespace mr {

class Moe final : public Ffn {
 public:
  Moe(const MoeSpec& spec, BuildContext& build) : spec_(spec), dim_(build.spec.dim) {
    router_ = build.loader.linear({{"router", spec.experts}}, dim_, false, build.layer);
    for (int e = 0; e < spec.experts; e++) {
      gate_.push_back(build.loader.weight("expert_gate", spec.hidden, dim_, {build.layer, e}));
      up_.push_back(build.loader.weight("expert_up", spec.hidden, dim_, {build.layer, e}));
      down_.push_back(build.loader.weight("expert_down", dim_, spec.hidden, {build.layer, e}));
    }
  }

  void forward(Tensor out, Tensor x, const Epilogue& epilogue, Step& step) const override {
    Backend& ops = step.ops;
    const int64_t rows = x.shape[0], pairs = rows * spec_.used, hidden = spec_.hidden;
    Tensor logits = step.arena.tensor(DType::f32, {rows, spec_.experts});
    router_.into(logits, x, step);
    Tensor expert = step.arena.tensor(DType::i32, {rows, spec_.used});
    Tensor weight = step.arena.tensor(DType::f32, {rows, spec_.used});
    ops.route(expert, weight, logits, spec_.renormalize);
    Tensor gate = step.activation({pairs, hidden}), up = step.activation({pairs, hidden});
    ops.grouped_linear(gate, x, gate_, expert);
    ops.grouped_linear(up, x, up_, expert);
    ops.gate(up, gate, up, spec_.activation);
    Tensor down = step.activation({pairs, dim_});
    ops.grouped_linear(down, up, down_, expert);
    if (!epilogue.residual) return ops.combine(out, down, weight);
    Tensor sum = step.activation({rows, dim_});
    ops.combine(sum, down, weight);
    ops.add(out, sum, 1);
  }

  int64_t workspace(int64_t rows) const override {
    const int64_t pairs = rows * spec_.used;
    return arena_bytes(rows * spec_.experts) + 2 * arena_bytes(pairs) + 2 * arena_bytes(pairs * spec_.hidden) + arena_bytes(pairs * dim_) +
           arena_bytes(rows * dim_);
  }
  int64_t decode_bytes() const override {  // all experts of a model have one shape and, but for odd files, one format
    return router_.bytes() + spec_.used * (gate_[0].bytes() + up_[0].bytes() + down_[0].bytes());
  }

 private:
  MoeSpec spec_;
  int64_t dim_;
  Linear router_;                  // [experts, dim]
  std::vector<Weight> gate_, up_;  // of each expert [hidden, dim]
  std::vector<Weight> down_;       // of each expert [dim, hidden]
};

std::unique_ptr<Ffn> make_moe(const MoeSpec& spec, BuildContext& build) { return std::make_unique<Moe>(spec, build); }

}  // namespace mr
