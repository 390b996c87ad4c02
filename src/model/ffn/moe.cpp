// A mixture of experts (Shazeer et al. 2017; Mixtral): a router chooses a few gated feed-forwards for every token, and their
// results are added by its weights. No token is ever dropped.
#include "model/mixers/mixers.h"

namespace mr {

class Moe final : public Ffn {
 public:
  Moe(const MoeSpec& spec, BuildContext& build) : spec_(spec), dim_(build.spec.dim) {
    router_ = build.loader.weight("router", spec.experts, dim_, build.layer);
    for (int e = 0; e < spec.experts; e++) {
      gate_.push_back(build.loader.weight("expert_gate", spec.hidden, dim_, {build.layer, e}));
      up_.push_back(build.loader.weight("expert_up", spec.hidden, dim_, {build.layer, e}));
      down_.push_back(build.loader.weight("expert_down", dim_, spec.hidden, {build.layer, e}));
    }
  }

  void forward(Tensor out, const Input& input, const Epilogue& epilogue, Step& step) const override {
    Backend& ops = step.ops;
    const int64_t rows = input.rows(), pairs = rows * spec_.used;
    Tensor expert = step.arena.tensor(DType::i32, {rows, spec_.used});
    Tensor weight = step.arena.tensor(DType::f32, {rows, spec_.used});
    Tensor x = choose(expert, weight, input, step);
    Tensor hidden = step.activation({pairs, spec_.hidden});
    ops.grouped_gate(hidden, x, gate_, up_, expert, spec_.activation, step.arena);
    if (epilogue.residual) return ops.grouped_combine(out, hidden, down_, expert, weight, epilogue.next, step.arena);
    Tensor down = step.activation({pairs, dim_});
    ops.grouped_linear(down, hidden, down_, expert);
    ops.combine(out, down, weight);
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
  // The experts of every row, and what they read.
  Tensor choose(Tensor expert, Tensor weight, const Input& input, Step& step) const {
    if (input.norm) {
      Tensor x = step.activation({input.rows(), dim_});
      step.ops.route_normed(expert, weight, x, input.x, *input.norm, router_, spec_.renormalize, step.arena);
      return x;
    }
    ArenaScope scope(step.arena);
    Tensor logits = step.arena.tensor(DType::f32, {input.rows(), spec_.experts});
    step.ops.linear(logits, input.x, router_, {});
    step.ops.route(expert, weight, logits, spec_.renormalize);
    return input.x;
  }

  MoeSpec spec_;
  int64_t dim_;
  Weight router_;                  // [experts, dim]
  std::vector<Weight> gate_, up_;  // of each expert [hidden, dim]
  std::vector<Weight> down_;       // of each expert [dim, hidden]
};

std::unique_ptr<Ffn> make_moe(const MoeSpec& spec, BuildContext& build) { return std::make_unique<Moe>(spec, build); }

}  // namespace mr
