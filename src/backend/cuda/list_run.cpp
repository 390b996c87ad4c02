#include "backend/cuda/list_run.h"

#include <algorithm>
#include <utility>

namespace mr::cuda {

ListRun::ListRun(Gpu& gpu, Backend& plain, const Bound& bound, const Batch& batch, const StateMemory& state)
    : gpu_(gpu), plain_(plain), bound_(bound), batch_(batch), state_(state) {}

bool ListRun::take(const Mark& mark) {
  if (!gpu_.choices.marks) return false;
  switch (mark.rule) {
    case Rule::norm_linear:
      return norm_linear(mark);
    case Rule::linear_gate:
      return linear_gate(mark);
    case Rule::linear_conv:
      return linear_conv(mark);
    case Rule::attend:
      return attend(mark);
    case Rule::gated_scan:
      return gated_scan(mark);
    case Rule::selective_scan:
      return selective_scan(mark);
    case Rule::route:
      return route(mark);
    case Rule::experts_gate:
      return experts_gate(mark);
    case Rule::experts_combine:
      return experts_combine(mark);
    case Rule::gate_linear:  // these two serve the CPU's rounding ahead
    case Rule::attend_linear:
      return false;
  }
  return false;
}

void ListRun::run(int i) {
  if (const LinearOp* linear = op<LinearOp>(i)) return multiply(i, product_of(*linear, bound_(linear->x)), *linear->weight);
  if (op<RouteOp>(i) || op<GroupedLinearOp>(i)) listed_ = -1;
  flush();
  plain_.run_op(bound_.list().ops[size_t(i)], bound_, batch_, state_);
}

// The chain.

void ListRun::flush() {
  routed_ = {};
  if (waiting_.empty()) return;
  const std::vector<ChainStep> steps = std::exchange(waiting_, {});
  if (gpu_.chains->pays(steps.size())) return gpu_.chains->launch(steps, plan_);
  for (const ChainStep& step : steps) alone(step);
}

const Launch& ListRun::at() {
  flush();
  return gpu_.launch;
}

void ListRun::alone(const ChainStep& step) {
  switch (step.kind) {
    case ChainStep::Kind::product:
      return gpu_.multiply_alone(gpu_.launch, step.product);
    case ChainStep::Kind::attend:
      return gpu_.decode(*this, step.attend);
    default:
      return run_alone(gpu_.launch, step);
  }
}

bool ListRun::wait(const ChainStep& step) {
  if (!waiting_.empty() && rows_of(waiting_.back()) != rows_of(step)) flush();
  if (!gpu_.chains->can_take(step)) return false;
  waiting_.push_back(step);
  return true;
}

bool ListRun::wait(Product& p) {
  const bool fixed = gpu_.options.deterministic;
  const bool few = p.x.rows <= gpu_.choices.chain_rows && (!fixed || gpu_.choices.chain_rows > 1);
  if (!p.gated)
    p.next = half_norm(writer_, p.y, fixed ? kFixedPart : gpu_.is_one(p) ? kNormPartOne : kNormPart, few && !fixed ? gpu_.launch.n_sm : 0);
  return few && wait(ChainStep(p));
}

bool ListRun::wait(const AttendCall& call) {
  const bool fixed = gpu_.options.deterministic;
  if (batch_.n_tokens > gpu_.choices.chain_rows || (fixed && gpu_.step->plan().n_chained == 0)) return false;
  if (call.spots.n_tokens > 1 || fixed) plan_ = gpu_.decode_plan(*this, call, true);
  return wait(ChainStep(call));
}

// Products and the norms between them.

Product ListRun::product_of(const LinearOp& o, Tensor x) const {
  return cuda::product_of(bound_(o.out), x, *o.weight, {o.bias, bound_(o.residual), o.scale});
}

void ListRun::multiply(int writer, const Product& p, const Weight& weight, Tensor both) {
  writer_ = writer;
  gpu_.multiply(*this, p, weight, both);
}

// In deterministic mode norms are always split this way, so that a row's bits do not depend on which kernels do the halves.
bool ListRun::share_norm(int norm, Product& p, const Weight& weight) {
  if (packing_of(*weight.codec) || gpu_.to_library(p) || !shape_fits(p)) return false;
  const bool done = half_.norm == norm && half_.x.rows == p.x.rows;
  if (!done && !(gpu_.options.deterministic && halve(norm))) return false;
  p.x = half_.x;
  p.squares = half_.squares;
  p.n_squares = half_.n_squares;
  p.eps = op<NormOp>(norm)->norm->eps;
  return true;
}

bool ListRun::halve(int i) {
  const NormOp& o = *op<NormOp>(i);
  const Norm& norm = *o.norm;
  const Matrix x = matrix(bound_(o.x)), out = matrix(bound_(o.out));
  if (norm.kind != Norm::Kind::rms || norm.bias || out.stride != out.cols || out.dtype != DType::bf16) return false;
  half_turn_ ^= 1;
  float* squares = gpu_.scratch<float>(*this, Scratch::Use(Scratch::squares + half_turn_), out.rows);
  cuda::half_norm(at(), x, {out.data, squares, floats(norm.weight), norm.offset, 1, true});
  half_ = {i, out, squares, 1};
  return true;
}

// In deterministic mode only for y in f32, which is stored unrounded, and in the part size that all kernels share.
HalfNorm ListRun::half_norm(int writer, const Matrix& y, int part, int64_t least) {
  const int at = bound_.list().next_norm[size_t(writer)];
  if (at < 0) return {};
  const Norm& norm = *op<NormOp>(at)->norm;
  const bool fixed = gpu_.options.deterministic;
  if (norm.kind != Norm::Kind::rms || norm.bias || y.rows > kFewRows || (fixed && (part != kFixedPart || y.dtype != DType::f32))) return {};
  const int64_t parts = std::max((y.cols + part - 1) / part, least);
  HalfNorm half[2];
  for (int i = 0; i < 2; i++)
    half[i] = {gpu_.scratch<uint16_t>(*this, Scratch::Use(Scratch::half_norm_x + i), y.rows * y.cols),
               gpu_.scratch<float>(*this, Scratch::Use(Scratch::squares + i), y.rows * parts),
               floats(norm.weight),
               norm.offset,
               parts,
               fixed};
  half_turn_ ^= 1;
  half_ = {at, {half[half_turn_].x, DType::bf16, y.rows, y.cols, y.cols}, half[half_turn_].squares, parts};
  return half[half_turn_];
}

bool ListRun::norm_linear(const Mark& mark) {
  const NormOp& norm = *op<NormOp>(mark.first);
  const LinearOp& linear = *op<LinearOp>(mark.first + 1);
  Product p = product_of(linear, bound_(norm.x));
  if (!share_norm(mark.first, p, *linear.weight)) return false;
  multiply(mark.first + 1, p, *linear.weight);
  return true;
}

bool ListRun::linear_gate(const Mark& mark) {
  const NormOp* norm = op<NormOp>(mark.first);
  const int gate_at = mark.end() - 1;
  const LinearOp& linear = *op<LinearOp>(gate_at - 1);
  const GateOp& gate = *op<GateOp>(gate_at);
  Product p = gated_product(bound_(gate.out), bound_(norm ? norm->x : linear.x), *linear.weight, gate.act);
  if (norm && !share_norm(mark.first, p, *linear.weight)) return false;
  multiply(gate_at, p, *linear.weight, bound_(linear.out));
  return true;
}

bool ListRun::linear_conv(const Mark& mark) {
  const NormOp& norm = *op<NormOp>(mark.first);
  const LinearOp& linear = *op<LinearOp>(mark.first + 1);
  const ShortConvOp& o = *op<ShortConvOp>(mark.first + 2);
  const ShortConv& conv = *o.conv;
  Product p = product_of(linear, bound_(norm.x));
  if (!gpu_.is_one(p) || conv.weight.shape[1] != kConvWidth || linear.residual || !share_norm(mark.first, p, *linear.weight)) return false;
  p.conv = {o.x.first - linear.out.first, o.x.cols, floats(conv.weight), floats(conv.bias), conv.act, slots(conv.state, batch_, state_),
            matrix(bound_(o.out))};
  multiply(mark.first + 1, p, *linear.weight);
  return true;
}

// Attention.

bool ListRun::attend(const Mark& mark) {
  const AttendOp& o = *op<AttendOp>(mark.end() - 1);
  const StoreKvOp* store = op<StoreKvOp>(mark.end() - 2);
  if (!store) return false;
  const RopeOp* rope = op<RopeOp>(mark.first);
  AttendCall call = call_of(bound_(o.out), bound_(o.q), *o.kv, batch_, state_, o.args);
  if (rope) {
    const Tensor angles = bound_(rope->angles);
    call.rope = {floats(angles), angles.stride[0], int(angles.shape[1])};
  }
  call.k = heads(bound_(store->k));
  call.v = heads(bound_(store->v));
  const StepMemory::Plan& plan = gpu_.step->plan();
  const bool halves = !rope || !rope->interleaved;  // pairs are (i, i + dim / 2)
  const bool fixed = gpu_.options.deterministic, single = plan.n_tiles == (fixed ? plan.n_single : 0);
  if (halves && single && !plan.shared_room && (fixed ? can_span(call) : can_decode(call))) {
    if (!wait(call)) gpu_.decode(*this, call);
    return true;
  }
  if (!rope || !halves || !can_rope_store(call)) return false;
  rope_store(at(), call);
  call.k = {};
  call.v = {};
  call.rope = {};
  gpu_.attend(*this, call);
  return true;
}

// Recurrences.

bool ListRun::gated_scan(const Mark& mark) {
  const DiagScanOp* diag = op<DiagScanOp>(mark.first + 1);
  if (!diag) return outer_scan(mark.first);
  const SoftplusOp& softplus = *op<SoftplusOp>(mark.first);
  const GateOp& gate = *op<GateOp>(mark.first + 2);
  const DiagScan& scan = *diag->scan;
  const ScanRows rows{matrix(bound_(diag->out)), matrix(bound_(diag->x)), matrix(bound_(diag->dt)), matrix(bound_(diag->b)),
                      matrix(bound_(diag->c)),   floats(softplus.bias),   matrix(bound_(gate.gate))};
  diag_scan(at(), rows, scan.n_state, floats(scan.a), floats(scan.d), slots(scan.state, batch_, state_), recurrence(batch_));
  return true;
}

bool ListRun::outer_scan(int first) {
  const OuterScanOp& o = *op<OuterScanOp>(first + 1);
  const OuterScan& scan = *o.scan;
  const OuterShape shape{scan.heads, scan.head_dim, scan.n_state, scan.groups, floats(scan.a), floats(scan.d), scan.dt_min, scan.dt_max};
  ScanRows rows{matrix(bound_(o.out)),
                matrix(bound_(o.x)),
                matrix(bound_(o.dt)),
                matrix(bound_(o.b)),
                matrix(bound_(o.c)),
                floats(op<SoftplusOp>(first)->bias),
                matrix(bound_(op<GateOp>(first + 2)->gate))};
  const Slots place = slots(scan.state, batch_, state_);
  // One row only: a scan leaves many parts, too many for products of more rows to sum.
  if (rows.out.rows == 1 && outer_can_norm(shape, place)) rows.next = half_norm(first + 2, rows.out, kScanPart);
  if (rows.out.rows == 1 && !gpu_.options.deterministic && wait(ChainStep(OuterStep{rows, shape, place, recurrence(batch_)}))) return true;
  cuda::outer_scan(at(), rows, shape, place, recurrence(batch_));
  return true;
}

bool ListRun::selective_scan(const Mark& mark) {
  const LinearOp& thin = *op<LinearOp>(mark.first);
  const DiagScanOp& o = *op<DiagScanOp>(mark.end() - 2);
  Selection select{.x = thin.weight, .low = op<LinearOp>(mark.end() - 4)->weight, .dt_bias = op<SoftplusOp>(mark.end() - 3)->bias};
  for (int i = 0; mark.count > 5 && i < 3; i++) select.norms[i] = op<NormOp>(mark.first + 1 + i)->norm;
  const Slots place = slots(o.scan->state, batch_, state_);
  const Tensor u = bound_(o.x);
  std::optional<SelectCall> call = select_call(bound_(o.out), u, bound_(op<GateOp>(mark.end() - 1)->gate), select, *o.scan);
  if (!call || gpu_.options.deterministic || batch_.n_tokens != batch_.n_seqs || batch_.n_seqs > kSelectMost || !can_select(*call, place) ||
      u.dtype != DType::bf16)
    return false;
  SelectCall& s = *call;
  const Tensor dbc = bound_.scratch(mark);
  s.dbc = matrix(dbc);
  const Product product = cuda::product_of(dbc, u, *select.x, {});
  const ChainStep step(SelectStep{s, place});
  if (gpu_.is_one(product) && shape_fits(product) && aligned(product.x) && gpu_.chains->pays(waiting_.size() + 2) &&
      gpu_.chains->can_take(step) && wait(ChainStep(product))) {
    wait(step);
    return true;
  }
  if (s.rows.x.cols % 8 == 0 && aligned(s.rows.x)) {
    product_thin(at(), s.dbc, s.rows.x, select.x->packed.data);
  } else {
    multiply(mark.first, product, *select.x);
  }
  select_scan(at(), s, place);
  return true;
}

// Experts.

bool ListRun::route(const Mark& mark) {
  const NormOp& norm = *op<NormOp>(mark.first);
  const Weight& router = *op<LinearOp>(mark.first + 1)->weight;
  const RouteOp& o = *op<RouteOp>(mark.first + 2);
  const Norm& n = *norm.norm;
  const Tensor x = bound_(norm.x);
  const RouteCall call{matrix(bound_(o.expert)),
                       matrix(bound_(o.weight)),
                       matrix(bound_(norm.out)),
                       matrix(x),
                       floats(n.weight),
                       n.eps,
                       n.offset,
                       router.packed.data,
                       int(router.out),
                       o.renormalize};
  if (n.kind != Norm::Kind::rms || n.bias || packing_of(*router.codec) || x.shape[0] > kFewRows || gpu_.options.deterministic ||
      !can_route(call))
    return false;
  listed_ = -1;
  if (x.shape[0] == 1 && half_.norm == mark.first && half_.x.rows == 1 &&
      wait(ChainStep(RouteStep{call, half_.x.data, half_.squares, half_.n_squares}))) {
    routed_ = {o.expert.id, norm.out.id, n.eps, half_};
    return true;
  }
  route_normed(at(), call);
  return true;
}

bool ListRun::one_row_of(Tensor x, Tensor expert, const Weight& w) const {
  return expert.shape[0] == 1 && !gpu_.options.deterministic && !packing_of(*w.codec) && w.in % 8 == 0 && x.dtype == DType::bf16 &&
         aligned(matrix(x));
}

ExpertsStep ListRun::chosen(Tensor x, std::span<const Weight> experts, Tensor expert) {
  ExpertsStep step{.first = gpu_.tables->experts(experts), .k = int(expert.shape[1]), .n = int(experts.size()), .x = matrix(x)};
  step.expert = matrix(expert);
  step.product.in = experts[0].in;
  step.product.x = step.x;
  return step;
}

bool ListRun::experts_gate(const Mark& mark) {
  const GroupedLinearOp &gates = *op<GroupedLinearOp>(mark.first), &ups = *op<GroupedLinearOp>(mark.first + 1);
  const Activation act = op<GateOp>(mark.first + 2)->act;
  const Weight& w = gates.experts[0];
  if (w.in % 8 || w.out % 16 || w.codec != ups.experts[0].codec) return false;
  const Tensor out = bound_(ups.out), x = bound_(gates.x), expert = bound_(gates.expert);
  if (!one_row_of(x, expert, w)) {
    gpu_.multiply_grouped(*this, out, x, gates.experts, ups.experts, expert, act);
    listed_ = gates.expert.id;
    return true;
  }
  ExpertsStep step = chosen(x, gates.experts, expert);
  Product& p = step.product;
  step.second = gpu_.tables->experts(ups.experts);
  p.gated = true;
  p.activation = act;
  p.out = 2 * out.size();
  p.y = matrix(out);
  if (routed_.expert == gates.expert.id && routed_.normed == gates.x.id && p.y.stride == w.out) {
    p.x.data = routed_.half.x.data;
    p.squares = routed_.half.squares;
    p.n_squares = routed_.half.n_squares;
    p.eps = routed_.eps;
    if (wait(ChainStep(step))) return true;
  }
  flush();
  alone(ChainStep(step));
  return true;
}

bool ListRun::experts_combine(const Mark& mark) {
  const GroupedLinearOp& down = *op<GroupedLinearOp>(mark.first);
  const Tensor weight = bound_(op<CombineOp>(mark.first + 1)->weight), into = bound_(op<AddOp>(mark.first + 2)->into);
  const Tensor x = bound_(down.x), expert = bound_(down.expert), each = bound_(down.out);
  if (into.dtype != DType::f32) return false;
  const bool one = one_row_of(x, expert, down.experts[0]);
  if (!one) gpu_.multiply_grouped(*this, each, x, down.experts, {}, expert, Activation::none, listed_ == down.expert.id);
  const HalfNorm half = half_norm(mark.first + 2, matrix(into), one ? kSumPartOne : kCombinePart, one ? gpu_.launch.n_sm : 0);
  if (!one) {
    combine_into(at(), matrix(into), matrix(each), matrix(weight), half);
    return true;
  }
  ExpertsStep step = chosen(x, down.experts, expert);
  step.weight = matrix(weight);
  step.product.out = into.shape[1];
  step.product.y = matrix(into);
  step.product.next = half;
  step.product.residual = static_cast<const float*>(into.data);
  if (routed_.expert == down.expert.id && wait(ChainStep(step))) return true;
  flush();
  alone(ChainStep(step));
  return true;
}

}  // namespace mr::cuda
