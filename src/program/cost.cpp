#include "program/cost.h"

#include <algorithm>
#include <cmath>

namespace mr {

double experts_read(double experts, double used, double rows) { return experts * (1 - std::pow(1 - used / experts, rows)); }

BatchShape::BatchShape(std::span<const Phase> all) : parts(all) {
  for (const Phase& p : all) {
    sequences += p.batch;
    tokens += p.batch * p.rows;
    outputs += p.batch * p.outputs;
  }
}

// Row i of a sequence sees context - rows + i + 1 tokens, at most its window.
static double pairs_of(const Phase& p, int window) {
  const double first = p.context - p.rows + 1, last = p.context, w = window ? window : last;
  if (first >= w) return p.rows * w;
  const double free = std::min(last, w);  // the window does not limit rows up to this one
  return (first + free) * (free - first + 1) / 2 + (last - free) * w;
}

double BatchShape::pairs(int window) const {
  double n = 0;
  for (const Phase& p : parts) n += p.batch * pairs_of(p, window);
  return n;
}

double BatchShape::keys(int window) const {
  double n = 0;
  for (const Phase& p : parts) n += p.batch * (window ? std::min(p.context, window + p.rows - 1) : p.context);
  return n;
}

Cost& Cost::operator+=(const Cost& o) {
  flops += o.flops;
  weights += o.weights;
  state += o.state;
  kept += o.kept;
  read += o.read;
  written += o.written;
  return *this;
}

namespace {

class Counter {
 public:
  Counter(const Program& program, const BatchShape& shape) : program_(program), shape_(shape) {}

  Cost operator()(const EmbedOp& o) const { return {.weights = rows(o.out) * double(o.table->in) * o.table->codec->bytes_per_weight()}; }
  Cost operator()(const NormOp& o) const {
    return {.flops = (o.norm->kind == Norm::Kind::none ? 1 : 5) * values(o.x),
            .weights = double(o.norm->weight.bytes() + o.norm->bias.bytes())};
  }
  Cost operator()(const LinearOp& o) const {
    return {.flops = product(o.out, *o.weight), .weights = double(o.weight->bytes() + o.bias.bytes())};
  }
  Cost operator()(const AddOp& o) const { return {.flops = 2 * values(o.x)}; }
  Cost operator()(const GateOp& o) const { return {.flops = 5 * values(o.out)}; }
  Cost operator()(const ActivateOp& o) const { return {.flops = 4 * values(o.x)}; }
  Cost operator()(const AnglesOp& o) const { return {.flops = 2 * values(o.out)}; }
  Cost operator()(const RopeOp& o) const { return {.flops = 3 * rows(o.x) * o.x.heads * double(o.angles.cols)}; }
  Cost operator()(const StoreKvOp& o) const { return {.kept = rows(o.k) * double(o.kv->bytes_per_token())}; }
  Cost operator()(const AttendOp& o) const {
    return {.flops = 2 * shape_.pairs(o.args.window) * o.args.heads * (o.kv->k_dim + o.kv->v_dim),
            .state = shape_.keys(o.args.window) * double(o.kv->bytes_per_token())};
  }
  Cost operator()(const ShortConvOp& o) const {
    const double width = double(o.conv->weight.shape[1]), state = shape_.sequences * double(o.x.cols) * (width - 1) * 4;
    return {.flops = values(o.x) * (2 * width + 4),
            .weights = double(o.conv->weight.bytes() + o.conv->bias.bytes()),
            .state = state,
            .kept = state};
  }
  Cost operator()(const DiagScanOp& o) const { return scan(o, diag_scan_flops, double(o.scan->inner) * o.scan->n_state); }
  Cost operator()(const OuterScanOp& o) const {
    return scan(o, outer_scan_flops, double(o.scan->heads) * o.scan->head_dim * o.scan->n_state);
  }
  Cost operator()(const SoftplusOp& o) const { return {.flops = 4 * values(o.x), .weights = double(o.bias.bytes())}; }
  Cost operator()(const RouteOp& o) const { return {.flops = 4 * values(o.logits)}; }
  Cost operator()(const GroupedLinearOp& o) const {
    const Weight& w = o.experts[0];
    const double n = double(o.experts.size()), used = double(o.expert.cols);
    return {.flops = product(o.out, w), .weights = experts_read(n, used, rows(o.expert)) * double(w.bytes())};
  }
  Cost operator()(const CombineOp& o) const {
    const double each = double(o.weight.cols) / std::max(o.out.heads, 1);  // terms of a sum
    return {.flops = 2 * values(o.out) * each};
  }
  Cost operator()(const MagnitudeOp& o) const { return {.flops = (o.what.centered ? 4 : 2) * values(o.x)}; }
  Cost operator()(const GatherOp&) const { return {}; }
  Cost operator()(const SoftcapOp& o) const { return {.flops = 4 * values(o.x)}; }

  double bytes(const Value& v, double activation) const {
    const bool own = program_.values[size_t(v.id)].type == ValueType::activation;
    return values(v) * (own ? activation : double(size_of(program_.dtype(v.id))));
  }

 private:
  double rows(const Value& v) const {
    const Rows& r = program_.values[size_t(v.id)].rows;
    return (r.base == Rows::Base::outputs ? shape_.outputs : shape_.tokens) * r.times;
  }
  double values(const Value& v) const { return rows(v) * double(v.cols); }
  double product(const Value& out, const Weight& w) const { return 2 * rows(out) * double(w.out) * double(w.in); }
  template <class Op>
  Cost scan(const Op& o, double flops, double h) const {
    const double state = shape_.sequences * h * double(size_of(o.scan->state.dtype));
    return {.flops = rows(o.x) * (flops * h + 3 * double(o.x.cols)),
            .weights = double(o.scan->a.bytes() + o.scan->d.bytes()),
            .state = state,
            .kept = state};
  }

  const Program& program_;
  const BatchShape& shape_;
};

}  // namespace

Cost cost(const Op& op, const Program& program, const BatchShape& shape, double activation) {
  if ((op.rows == Rows::Base::outputs ? shape.outputs : shape.tokens) == 0) return {};
  const Counter counter(program, shape);
  Cost c = std::visit(counter, op.kind);
  if (activation == 0) return c;
  for (auto [v, access] : touched(op)) {
    if (access != Access::write) c.read += counter.bytes(v, activation);
    if (access != Access::read) c.written += counter.bytes(v, activation);
  }
  if (op.get<GatherOp>()) c.read = c.written;  // of all tokens' rows, the outputs' alone
  return c;
}

Cost cost(const Program& program, const BatchShape& shape) {
  Cost sum;
  for (const Op& op : program.list(int64_t(shape.tokens), int64_t(shape.outputs)).ops) sum += cost(op, program, shape);
  return sum;
}

}  // namespace mr
