// A mixture of experts (Shazeer et al. 2017; Mixtral): a router chooses a few gated feed-forwards for every token, and their
// results are added by its weights. No token is ever dropped.
#include <fmt/format.h>

#include "core/error.h"
#include "model/mixers/mixers.h"

namespace mr {

class Moe final : public Ffn {
 public:
  Moe(const MoeSpec& spec, BuildContext& build) : spec_(spec) {
    const int64_t dim = build.spec.dim;
    router_ = build.loader.weight("router", spec.experts, dim, build.layer);
    for (int e = 0; e < spec.experts; e++) {
      gate_.push_back(build.loader.weight("expert_gate", spec.hidden, dim, {build.layer, e}));
      up_.push_back(build.loader.weight("expert_up", spec.hidden, dim, {build.layer, e}));
      down_.push_back(build.loader.weight("expert_down", dim, spec.hidden, {build.layer, e}));
    }
  }

  Value record(Recorder& r, Value x) const override {
    const Value logits = r.linear(x, {&router_, 1}, {.name = "router", .type = ValueType::f32});
    const auto [expert, weight] = r.route(logits, spec_.used, spec_.renormalize);
    const Value gate = r.grouped_linear(x, gate_, expert, "expert_gate"), up = r.grouped_linear(x, up_, expert, "expert_up");
    r.gate_onto(up, gate, up, spec_.activation);
    return r.combine(r.grouped_linear(up, down_, expert, "expert_down"), weight);
  }

 private:
  MoeSpec spec_;
  Weight router_;                  // [experts, dim]
  std::vector<Weight> gate_, up_;  // of each expert [hidden, dim]
  std::vector<Weight> down_;       // of each expert [dim, hidden]
};

int64_t MoeSpec::parameters(int64_t dim, bool all_experts) const {
  return dim * experts + (all_experts ? experts : used) * 3 * dim * hidden + 3 * dim * shared;
}

std::string MoeSpec::text() const { return fmt::format("{} of {} experts of {}", used, experts, hidden); }

std::unique_ptr<Ffn> make(const MoeSpec& spec, BuildContext& build) {
  check(!spec.shared, "layer {} has experts that every token uses, which can be analysed but not run", build.layer);
  return std::make_unique<Moe>(spec, build);
}

}  // namespace mr
