#include "backend/op_times.h"

#include <fmt/format.h>

#include "program/cost.h"

namespace mr {

OpTime& OpTimes::note(const std::string& what) {
  OpTime& t = times_[what];
  t.seconds += std::chrono::duration<double>(Clock::now() - since_).count();
  t.calls++;
  since_ = Clock::now();
  return t;
}

// "linear q4_1 [960, 576]", "experts f16 8 x [64, 32]"; empty: not a product.
static std::string product_name(const Op& op) {
  if (auto* o = op.get<LinearOp>()) return fmt::format("linear {} [{}, {}]", o->weight->codec->name, o->weight->out, o->weight->in);
  if (auto* o = op.get<GroupedLinearOp>()) {
    const Weight& w = o->experts[0];
    return fmt::format("experts {} {} x [{}, {}]", w.codec->name, o->experts.size(), w.out, w.in);
  }
  return "";
}

// A run of operations is named by its products and its attention, scan, convolution and routing; elementwise work is left out.
static std::string name_of_run(const std::vector<Op>& ops, int first, int count) {
  std::string name;
  for (int i = first; i < first + count; i++) {
    const Op& op = ops[size_t(i)];
    std::string part = product_name(op);
    if (part.empty() && (op.get<AttendOp>() || op.get<DiagScanOp>() || op.get<OuterScanOp>() || op.get<RouteOp>() || op.get<ShortConvOp>()))
      part = name_of(op.kind);
    if (!part.empty()) name += (name.empty() ? "" : ", ") + part;
  }
  return name.empty() ? std::string(name_of(ops[size_t(first)].kind)) : name;
}

void OpTimes::ran(const Bound& at, int first, int count) {
  const std::vector<Op>& ops = at.list().ops;
  OpTime& t = note(name_of_run(ops, first, count));
  const Phase rows{double(at.n_tokens()), 1, 1, double(at.n_out()) / double(at.n_tokens())};
  const BatchShape shape(std::span(&rows, 1));
  for (int i = first; i < first + count; i++) {
    if (product_name(ops[size_t(i)]).empty()) continue;
    const Cost c = cost(ops[size_t(i)], at.program(), shape);
    t.bytes += c.weights;
    t.flops += c.flops;
  }
  since_ = Clock::now();
}

}  // namespace mr
