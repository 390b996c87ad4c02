// Marks runs of operations that may be fused into one kernel. A mark is an offer: a backend accepts it given the step's shapes, or
// declines and is offered the shorter ones inside, down to the plain operations. So a rule need not predict speed, and mixers do not
// know about fusion.
#include <algorithm>
#include <map>
#include <utility>

#include "program/program.h"

namespace mr {

namespace {

constexpr std::string_view kRuleNames[] = {"norm_linear", "linear_gate",    "gate_linear", "attend",       "attend_linear",  "linear_conv",
                                           "gated_scan",  "selective_scan", "route",       "experts_gate", "experts_combine"};
static_assert(std::size(kRuleNames) == size_t(Rule::experts_combine) + 1);

class Fuser {
 public:
  Fuser(Program& program, OpList& list) : program_(program), list_(list), touches_(program.values.size()) {
    for (int i = 0; i < int(list.ops.size()); i++)
      for (auto [v, access] : touched(std::as_const(list.ops[size_t(i)]))) touches_[size_t(v.id)].push_back({i, v, access});
  }

  void run() {
    for (int i = 0; i < int(list_.ops.size()); i++) {
      at_norm(i);
      at_linear(i);
      at_attention(i);
      at_scan(i);
      at_experts(i);
    }
    std::ranges::stable_sort(list_.marks,
                             [](const Mark& a, const Mark& b) { return a.first != b.first ? a.first < b.first : a.count > b.count; });
  }

 private:
  template <class T>
  const T* op(int i) const {
    return i >= 0 && i < int(list_.ops.size()) ? list_.ops[size_t(i)].get<T>() : nullptr;
  }
  void mark(int first, int end, Rule rule, int scratch = -1) { list_.marks.push_back({first, end - first, rule, scratch}); }

  // A norm whose result is read by operation i + 1, and by none after the run.
  void at_norm(int i) {
    const NormOp* norm = op<NormOp>(i);
    const LinearOp* linear = op<LinearOp>(i + 1);
    if (!norm || !linear || norm->out.id == norm->x.id || !(linear->x == norm->out)) return;
    if (const RouteOp* route = op<RouteOp>(i + 2); route && route->logits == linear->out) {
      const bool plain = !linear->bias.rank && linear->scale == 1 && !linear->residual && !read_again(linear->out, i + 3);
      if (plain) mark(i, i + 3, Rule::route);
      return;
    }
    if (read_again(norm->out, i + 2)) return;
    mark(i, i + 2, Rule::norm_linear);
    if (gates(i + 1)) mark_gate(i, i + 1);
    const ShortConvOp* conv = op<ShortConvOp>(i + 2);
    if (conv && conv->x.id == linear->out.id && linear->out.first == 0 && !read_again(conv->x, i + 3)) mark(i, i + 3, Rule::linear_conv);
  }

  void at_linear(int i) {
    if (gates(i)) mark_gate(i, i);
    at_selection(i);
  }

  // Whether operation i is a linear whose two halves the next operation gates.
  bool gates(int i) const {
    const LinearOp* linear = op<LinearOp>(i);
    const GateOp* gate = op<GateOp>(i + 1);
    if (!linear || !gate || linear->residual || linear->bias.rank || linear->scale != 1) return false;
    const int64_t half = linear->out.cols / 2;
    return gate->gate == linear->out.columns(0, half) && gate->up == linear->out.columns(half, half) && gate->out.id != linear->out.id &&
           !read_again(linear->out, i + 2);
  }
  void mark_gate(int first, int linear) {
    mark(first, linear + 2, Rule::linear_gate);
    const LinearOp* reader = op<LinearOp>(linear + 2);
    if (reader && reader->x == op<GateOp>(linear + 1)->out) mark(first, linear + 3, Rule::gate_linear);
  }

  void at_attention(int i) {
    if (op<RopeOp>(i - 1) && op<RopeOp>(i)) return;  // the run began with the first
    int end = i;
    while (op<RopeOp>(end) && end < i + 2) end++;
    if (op<StoreKvOp>(end)) end++;
    const AttendOp* attend = op<AttendOp>(end);
    if (!attend || !rotates_only(i, end, *attend)) return;
    end++;
    for (int r = i; r < end; r++)  // a fused kernel need not store the rotated values
      if (const RopeOp* rope = op<RopeOp>(r); rope && read_again(rope->x, end)) return;
    if (end - i > 1) mark(i, end, Rule::attend);
    const LinearOp* reader = op<LinearOp>(end);
    if (reader && reader->x == attend->out.as_matrix()) mark(i, end + 1, Rule::attend_linear);
  }
  // Whether operations [first, end) before an attention only rotate its queries and the stored keys, by the same angles.
  bool rotates_only(int first, int end, const AttendOp& attend) const {
    const StoreKvOp* store = op<StoreKvOp>(end - 1);
    if (op<StoreKvOp>(first - 1) || (op<RopeOp>(first - 1) && end > first)) return false;
    const RopeOp *q = op<RopeOp>(first), *k = op<RopeOp>(first + 1);
    if (!q) return !store || store->kv == attend.kv;
    if (!(q->x == attend.q) || bool(k) != bool(store)) return false;
    return !store || (k->x == store->k && k->angles == q->angles && k->interleaved == q->interleaved && store->kv == attend.kv);
  }

  void at_scan(int i) {
    if (scans_gated(i)) mark(i, i + 3, Rule::gated_scan);
  }
  // softplus of dt, which only the scan reads, scan, gate
  bool scans_gated(int i) const {
    const SoftplusOp* softplus = op<SoftplusOp>(i);
    const GateOp* gate = op<GateOp>(i + 2);
    if (!softplus || !gate || gate->act != Activation::silu || read_again(softplus->x, i + 2)) return false;
    auto fits = [&](const auto* scan) { return scan && scan->dt == softplus->x && gate->up == scan->out && gate->out == scan->out; };
    return fits(op<DiagScanOp>(i + 1)) || fits(op<OuterScanOp>(i + 1));
  }

  // Mamba's selection of dt, B and C, and its scan.
  void at_selection(int i) {
    const LinearOp* select = op<LinearOp>(i);
    if (!select || select->bias.rank || select->residual || select->scale != 1) return;
    int end = i + 1;
    while (op<NormOp>(end) && end < i + 4) end++;
    const LinearOp* dt = op<LinearOp>(end);
    const DiagScanOp* scan = op<DiagScanOp>(end + 2);
    if (!dt || !scan || !scans_gated(end + 1) || (end != i + 1 && end != i + 4)) return;
    if (!(scan->x == select->x) || !(scan->dt == dt->out) || dt->bias.rank || dt->residual || dt->scale != 1) return;
    if (dt->x.id != select->out.id || scan->b.id != select->out.id || scan->c.id != select->out.id) return;
    if (read_again(select->out, end + 4)) return;
    program_.values.push_back({program_.values[size_t(select->out.id)].rows, select->out.cols, ValueType::f32});
    mark(i, end + 4, Rule::selective_scan, int(program_.values.size()) - 1);
  }

  void at_experts(int i) {
    const GroupedLinearOp *first = op<GroupedLinearOp>(i), *second = op<GroupedLinearOp>(i + 1);
    if (!first) return;
    const GateOp* gate = op<GateOp>(i + 2);
    if (second && gate && first->x == second->x && first->expert == second->expert && gate->gate == first->out && gate->up == second->out &&
        gate->out == second->out && !read_again(first->out, i + 3))
      mark(i, i + 3, Rule::experts_gate);
    const CombineOp* combine = op<CombineOp>(i + 1);
    const AddOp* add = op<AddOp>(i + 2);
    if (combine && add && combine->x == first->out && add->x == combine->out && add->scale == 1 && !read_again(first->out, i + 2) &&
        !read_again(combine->out, i + 3))
      mark(i, i + 3, Rule::experts_combine);
  }

  // Whether any operation from `from` on reads these columns before they are overwritten.
  bool read_again(Value columns, int from) const {
    for (const Touch& t : touches_[size_t(columns.id)]) {
      const Value& v = t.value;
      if (t.op < from || v.first >= columns.first + columns.cols || columns.first >= v.first + v.cols) continue;
      if (t.access != Access::write) return true;
      if (v.first <= columns.first && v.first + v.cols >= columns.first + columns.cols) return false;
    }
    return columns.id == program_.logits.id;
  }

  struct Touch {
    int op;
    Value value;
    Access access;
  };
  Program& program_;
  OpList& list_;
  std::vector<std::vector<Touch>> touches_;  // of each value, in order
};

}  // namespace

std::string_view name_of(Rule rule) { return kRuleNames[size_t(rule)]; }

void fuse(Program& program, OpList& list) { Fuser(program, list).run(); }

// The operation that writes a value may do part of the norm that reads it in its epilogue.
void find_next_norms(OpList& list) {
  list.next_norm.assign(list.ops.size(), -1);
  std::map<int, int> toucher;  // value -> next operation that touches it
  for (int i = int(list.ops.size()) - 1; i >= 0; i--) {
    const Op& op = list.ops[size_t(i)];
    const auto values = touched(op);
    const Value written = values.back().first;
    if (auto next = toucher.find(written.id); values.back().second != Access::read && next != toucher.end()) {
      const NormOp* norm = list.ops[size_t(next->second)].get<NormOp>();
      if (norm && norm->x == written && norm->out.id != written.id) list.next_norm[size_t(i)] = next->second;
    }
    for (auto [v, access] : values) toucher[v.id] = i;
  }
}

}  // namespace mr
