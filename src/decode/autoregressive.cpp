// Token by token: all tokens not yet in the state are rows, and the last row samples the next token.
#include "decode/decoding.h"

namespace mr {
namespace {

class Autoregressive final : public Decoding {
 public:
  int max_rows() const override { return 1; }
  bool needs_result() const override { return false; }

  RowPlan plan(const SequenceState& seq) override {
    RowPlan plan;
    plan.tokens = std::span<const int32_t>(seq.tokens).subspan(size_t(seq.committed));
    plan.wants_logits_from = int(plan.tokens.size()) - 1;
    return plan;
  }

  Absorbed absorb(const SequenceState&, int n_rows, std::span<const Sampled> sampled) override {
    return {.n_rows = n_rows, .path = {}, .emit = sampled.last(1)};
  }
};

}  // namespace

std::unique_ptr<Decoding> make_autoregressive() { return std::make_unique<Autoregressive>(); }

}  // namespace mr
