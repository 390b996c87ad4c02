#include "analyze/program_costs.h"

#include <algorithm>
#include <map>

#include "program/print.h"

namespace mr {

namespace {

// Names of products in reports; others keep their own.
constexpr std::pair<std::string_view, std::string_view> kProducts[] = {
    {"q+k+v", "q, k, v"},
    {"q", "q, k, v"},
    {"qkv", "q, k, v"},
    {"o", "attention out"},
    {"gate+up", "feed-forward up"},
    {"gate_up", "feed-forward up"},
    {"up", "feed-forward up"},
    {"down", "feed-forward down"},
    {"x", "dt, B, C"},
    {"output", "output layer"},
    {"per_layer_projection", "per-layer inputs"},
    {"per_layer_gate", "per-layer gate"},
    {"per_layer_out", "per-layer out"},
    {"altup_router", "AltUp"},
    {"altup_predict", "AltUp"},
    {"altup_correct", "AltUp"},
    {"altup_in", "AltUp in and out"},
    {"altup_out", "AltUp in and out"},
    {"laurel_left", "Laurel"},
    {"laurel_right", "Laurel"},
};

std::string product_name(const std::string& name) {
  const auto known = std::ranges::find(kProducts, name, &std::pair<std::string_view, std::string_view>::first);
  return known == std::end(kProducts) ? name : std::string(known->second);
}

std::string report_name(const Op& op, bool has_rope) {
  if (op.get<EmbedOp>()) return "embedding";
  if (op.get<LinearOp>()) return product_name(op.name);
  if (op.get<GroupedLinearOp>()) return "experts";
  if (auto* c = op.get<CombineOp>(); op.get<RouteOp>() || (c && !c->x.heads)) return "routing";
  if (auto* a = op.get<AttendOp>()) return attention_name(a->args.window);
  if (op.get<AnglesOp>() || op.get<RopeOp>() || op.get<StoreKvOp>()) return has_rope ? "rope, store K/V" : "store K/V";
  if (op.get<ShortConvOp>()) return "convolution";
  if (op.get<DiagScanOp>() || op.get<OuterScanOp>() || op.get<SoftplusOp>()) return "scan";
  if (op.get<GateOp>() || op.get<ActivateOp>()) return "gate";
  if (op.get<SoftcapOp>()) return "softcap";
  return "norms, residual";
}

// A step's operations, summed by name.
class Sum {
 public:
  Sum(const Program& program, const Storage& storage, const BatchShape& shape, int chips)
      : program_(program), s_(storage), shape_(shape), chips_(chips) {}

  // `count` operations like this one; `times` of them are not a continuation of the previous one.
  void add(const Op& op, const std::string& name, int count, int times) {
    const Cost c = cost(op, program_, shape_, s_.activation);
    if (op.rows == Rows::Base::outputs && shape_.outputs == 0) return;
    Operation& o = named(name);
    o.layers += times;
    o.flops += count * c.flops;
    o.read += count * c.read;
    o.written += count * c.written;
    if (auto* w = op.get<LinearOp>())
      product(o, *w->weight, count * c.weights, shape_of(op));
    else if (auto* g = op.get<GroupedLinearOp>())
      experts(o, *g, count * c.weights);
    else
      (op.get<EmbedOp>() ? o.read : o.weights) += count * c.weights;  // a lookup reads some rows, not the table
    state(o, op, count * c.state, count * c.kept);
    if (o.name == "norms, residual") o.split = false;
    if (chips_ > 1) all_reduce(op, count);
  }

  std::vector<Operation> with_sampling(double vocab) {
    if (shape_.outputs > 0) {
      Operation& sample = named("sampling");
      sample.layers = 1;
      sample.flops = 3 * shape_.outputs * vocab;
      sample.read = shape_.outputs * vocab * 4;
      sample.split = false;
    }
    return std::move(ops_);
  }

 private:
  Operation& named(const std::string& name) {
    const auto known = std::ranges::find(ops_, name, &Operation::name);
    return known == ops_.end() ? ops_.emplace_back(Operation{.name = name}) : *known;
  }
  double shape_of(const Op& op) const { return op.rows == Rows::Base::outputs ? shape_.outputs : shape_.tokens; }

  // Bytes of one weight.
  double read_weights(Operation& o, const Weight& w, double bytes) {
    const bool table = o.name == "output layer";
    o.product = true;
    if (!s_.renamed) {
      o.weights += bytes;
      o.format = product_of(w.codec->name);
      return w.codec->bytes_per_weight();
    }
    const double each = table ? s_.table : s_.block;
    o.weights += bytes * each * double(w.in * w.out) / double(w.bytes());
    o.format = table ? s_.table_product : s_.block_product;
    return each;
  }

  void product(Operation& o, const Weight& w, double bytes, double rows) {
    const double each = read_weights(o, w, bytes);
    if (o.law.empty()) set_law(o, o.name == "output layer" ? "B" : "B·T", rows, each);  // for all rows; the last layer may have fewer
  }

  void experts(Operation& o, const GroupedLinearOp& g, double bytes) {
    const double each = read_weights(o, g.experts[0], bytes), used = double(g.expert.cols);
    set_experts_law(o, shape_.tokens, double(g.experts.size()), used, each);
  }

  void state(Operation& o, const Op& op, double read, double kept) {
    if (auto* a = op.get<AttendOp>()) {
      read *= kv_bytes(s_, *a->kv) / double(a->kv->bytes_per_token());
      o.state_ways = a->kv->kv_heads;
      set_attention_law(o, shape_.parts[0], double(a->args.heads) / a->kv->kv_heads, a->args.window, s_.kv);
    }
    if (auto* k = op.get<StoreKvOp>()) kept *= kv_bytes(s_, *k->kv) / double(k->kv->bytes_per_token());
    if (auto* d = op.get<DiagScanOp>()) scan(o, d->scan->state, diag_scan_flops, read, kept);
    if (auto* d = op.get<OuterScanOp>()) scan(o, d->scan->state, outer_scan_flops, read, kept);
    o.state += read;
    o.written += kept;
  }

  void scan(Operation& o, const SlotState& state, double flops, double& read, double& kept) {
    const double as = double(size_of(s_.scan)) / double(size_of(state.dtype));
    read *= as;
    kept *= as;
    set_scan_law(o, shape_.parts[0], flops, s_.scan);
  }

  // With tensor parallelism each chip has a partial sum of what is added to the residual.
  void all_reduce(const Op& op, int count) {
    const LinearOp* linear = op.get<LinearOp>();
    const AddOp* add = op.get<AddOp>();
    const bool adds = (linear && linear->residual) || (add && add->x.id != add->into.id);
    if (!adds || op.layer < 0) return;
    Operation& o = named("all-reduce");
    o.split = false;
    o.layers += count;
    o.link += count * ring_bytes(chips_, shape_of(op) * double(linear ? linear->out.cols : add->into.cols) * s_.activation);
  }

  const Program& program_;
  const Storage& s_;
  const BatchShape& shape_;
  const int chips_;
  std::vector<Operation> ops_;
};

}  // namespace

ProgramCosts::ProgramCosts(const Program& program) : program_(program), whole_(fold(program.whole)), tail_(fold(program.tail)) {}

std::vector<ProgramCosts::Alike> ProgramCosts::fold(const OpList& list) const {
  const bool has_rope = std::ranges::any_of(list.ops, [](const Op& op) { return op.get<RopeOp>(); });
  std::vector<Alike> all;
  std::map<std::string, size_t> known;  // by its printed line
  for (const ProgramLine& line : lines_of(program_, list)) {
    const Op& op = list.ops[size_t(line.index)];
    auto [at, is_new] = known.try_emplace(line.shape, all.size());
    if (is_new) all.push_back({&op, report_name(op, has_rope)});
    const LinearOp* linear = op.get<LinearOp>();
    all[at->second].count++;
    all[at->second].times += !linear || linear->out.first == 0;
  }
  return all;
}

std::vector<Operation> ProgramCosts::operations(const Storage& storage, std::span<const Phase> parts, int chips) const {
  check_parts(parts);
  const BatchShape shape(parts);
  Sum sum(program_, storage, shape, chips);
  const bool tail = &program_.list(int64_t(shape.tokens), int64_t(shape.outputs)) == &program_.tail;
  for (const Alike& a : tail ? tail_ : whole_) sum.add(*a.op, a.name, a.count, a.times);
  return sum.with_sampling(double(program_.logits.cols));
}

}  // namespace mr
