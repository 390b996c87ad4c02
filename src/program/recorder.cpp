#include "program/recorder.h"

#include <algorithm>

#include "core/error.h"

namespace mr {

Value Recorder::make(Rows rows, int64_t cols, ValueType type) {
  program_.values.push_back({rows, cols, type});
  return {int(program_.values.size()) - 1, 0, cols};
}

void Recorder::push(OpKind kind, std::string name) {
  const Op& op = program_.whole.ops.emplace_back(Op{std::move(kind), layer, std::move(name)});
  for (auto [v, access] : touched(op)) check(!folded_.contains(v.id), "an operation reads a value that add() has folded into a residual");
}

Value Recorder::input(Rows rows, int64_t cols, ValueType type) { return make(rows, cols, type); }

Value Recorder::embed(const Weight& table, float scale, std::string name, int64_t columns) {
  const Value out = make({}, std::max(columns, table.in), ValueType::f32).columns(0, table.in);
  push(EmbedOp{out, &table, scale}, std::move(name));
  return out;
}

Value Recorder::norm(Value x, const Norm& norm) {
  Value out = make(info(x).rows, x.cols, ValueType::activation);
  push(NormOp{out, x, &norm});
  return out;
}

void Recorder::norm_in_place(Value x, const Norm& norm) { push(NormOp{x, x, &norm}); }

Value Recorder::linear(Value x, std::span<const Weight> weights, const LinearArgs& args) {
  int64_t cols = 0, begin = 0;
  for (const Weight& w : weights) {
    check(w.in == x.cols, "'{}' [{}, {}] cannot read {} columns", args.name, w.out, w.in, x.cols);
    cols += w.out;
  }
  Value out = make(info(x).rows, cols, args.type);
  for (const Weight& w : weights) {
    const Tensor bias = args.bias.rank ? args.bias.cols(begin, w.out) : Tensor{};  // in an outline it has a shape and no data
    push(LinearOp{out.columns(begin, w.out), x, &w, bias, args.scale}, args.name);
    begin += w.out;
  }
  return out;
}

Value Recorder::add(Value into, Value x, float scale) {
  std::vector<Op>& ops = program_.whole.ops;
  size_t first = ops.size();  // of the products that computed x
  auto makes_x = [&](const Op& op) {
    const LinearOp* o = op.get<LinearOp>();
    return o && o->out.id == x.id && !o->residual && o->x.id != into.id;  // else it would overwrite what it still reads
  };
  while (first > 0 && makes_x(ops[first - 1])) first--;
  const bool whole = first < ops.size() && x == Value{x.id, 0, info(x).cols} && scale == 1 && info(into).type == ValueType::f32;
  if (!whole) {
    push(AddOp{into, x, scale});
    return into;
  }
  for (size_t i = first; i < ops.size(); i++) {
    LinearOp& linear = std::get<LinearOp>(ops[i].kind);
    linear.out = linear.residual = into.columns(linear.out.first, linear.out.cols);
  }
  folded_.insert(x.id);
  return into;
}

Value Recorder::gate(Value gate, Value up, Activation act) {
  Value out = make(info(up).rows, up.cols, ValueType::activation);
  push(GateOp{out, gate, up, act});
  return out;
}

void Recorder::gate_onto(Value out, Value gate, Value up, Activation act) { push(GateOp{out, gate, up, act}); }

void Recorder::activate(Value x, Activation act) { push(ActivateOp{x, act}); }

Value Recorder::angles(const RopeTable& rope) {
  Value& out = angles_[&rope];
  if (out) return out;
  out = make({}, rope.dim, ValueType::f32);
  push(AnglesOp{out, &rope});
  return out;
}

void Recorder::rope(Value x, Value angles, bool interleaved) { push(RopeOp{x, angles, interleaved}); }

void Recorder::store_kv(Value k, Value v, const PagedKv& kv) { push(StoreKvOp{k, v, &kv}); }

Value Recorder::attend(Value q, const PagedKv& kv, const AttendArgs& args) {
  Value out = make(info(q).rows, int64_t(args.heads) * kv.v_dim, ValueType::activation);
  push(AttendOp{out.as_heads(args.heads), q, &kv, args});
  return out;
}

Value Recorder::short_conv(Value x, const ShortConv& conv) {
  Value out = make(info(x).rows, x.cols, ValueType::activation);
  push(ShortConvOp{out, x, &conv});
  return out;
}

Value Recorder::diag_scan(Value x, Value dt, Value b, Value c, const DiagScan& scan) {
  Value out = make(info(x).rows, scan.inner, ValueType::activation);
  push(DiagScanOp{out, x, dt, b, c, &scan});
  return out;
}

Value Recorder::outer_scan(Value x, Value dt, Value b, Value c, const OuterScan& scan) {
  Value out = make(info(x).rows, int64_t(scan.heads) * scan.head_dim, ValueType::activation);
  push(OuterScanOp{out, x, dt, b, c, &scan});
  return out;
}

void Recorder::softplus(Value x, Tensor bias) { push(SoftplusOp{x, bias}); }

Recorder::Routed Recorder::route(Value logits, int k, bool renormalize) {
  const Rows rows = info(logits).rows;
  Routed out{make(rows, k, ValueType::i32), make(rows, k, ValueType::f32)};
  push(RouteOp{out.expert, out.weight, logits, renormalize});
  return out;
}

Value Recorder::grouped_linear(Value x, std::span<const Weight> experts, Value expert, std::string name) {
  Rows rows = info(expert).rows;
  rows.times = int(expert.cols);
  Value out = make(rows, experts[0].out, ValueType::activation);
  push(GroupedLinearOp{out, x, experts, expert}, std::move(name));
  return out;
}

Value Recorder::combine(Value x, Value weight) {
  Value out = make(info(weight).rows, x.cols, ValueType::activation);
  push(CombineOp{out, x, weight});
  return out;
}

Value Recorder::mix(Value x, int k, Value weight) {
  const Value out = make(info(x).rows, weight.cols / k * (x.cols / k), ValueType::f32);
  mix_onto(out, x, k, weight, false);
  return out;
}

void Recorder::mix_onto(Value out, Value x, int k, Value weight, bool add) {
  push(CombineOp{out.as_heads(int(weight.cols / k)), x.as_heads(k), weight, add});
}

Value Recorder::magnitude(Value x, const Magnitude& what) {
  const Value out = make(info(x).rows, 1, ValueType::f32);
  push(MagnitudeOp{out, x, what});
  return out;
}

Value Recorder::gather(Value x) {
  Value out = make({Rows::Base::outputs, info(x).rows.times}, x.cols, info(x).type);
  push(GatherOp{out, x});
  return out;
}

void Recorder::softcap(Value x, float cap) { push(SoftcapOp{x, cap}); }

}  // namespace mr
