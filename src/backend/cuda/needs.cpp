#include "backend/cuda/needs.h"

#include <algorithm>
#include <set>

namespace mr::cuda {

namespace {

class Counter {
 public:
  Counter(const Gpu& gpu, const Program& program, const StepLimits& most) : gpu_(gpu), program_(program), most_(most) {}

  ScratchNeeds count() {
    int64_t norm = 0;
    for (const Op& op : program_.whole.ops) {
      if (const NormOp* o = op.get<NormOp>()) norm = std::max(norm, o->x.cols);
      if (const LinearOp* o = op.get<LinearOp>()) linear(*o);
      if (const GroupedLinearOp* o = op.get<GroupedLinearOp>()) grouped(*o);
      if (const AttendOp* o = op.get<AttendOp>()) attend(*o);
    }
    half_norms(norm);
    need(Scratch::sampled_tokens, Gpu::sampled_room(most_.outputs) * 4);
    return needs_;
  }

 private:
  void need(Scratch::Use use, int64_t bytes) { needs_[use] = std::max(needs_[use], bytes); }

  int64_t rows(const Value& v) const {
    const Rows& r = program_.values[size_t(v.id)].rows;
    return (r.base == Rows::Base::outputs ? most_.outputs : most_.tokens) * r.times;
  }

  // Rows that are not bf16, or not aligned as a product reads them, are copied.
  void copied(const Value& x, bool if_apart) {
    const ValueInfo& info = program_.values[size_t(x.id)];
    const bool apart = x.first % 8 || info.cols % 8;
    if (program_.dtype(x.id) != DType::bf16 || (if_apart && apart)) need(Scratch::x_bf16, rows(x) * padded_cols(x.cols) * 2);
  }

  void linear(const LinearOp& o) {
    const bool blocks = packing_of(*o.weight->codec).has_value();
    copied(o.x, blocks);
    const bool many = rows(o.x) > kPackedRows && !gpu_.options.deterministic;
    if (blocks && (many || o.weight->out % 32)) need(Scratch::unpacked, o.weight->out * o.weight->in * 2);
  }

  void grouped(const GroupedLinearOp& o) {
    copied(o.x, true);
    const int64_t pairs = rows(o.out), experts = int64_t(o.experts.size()), tiles = std::min(pairs, experts) + pairs / GroupPlan{}.most;
    need(Scratch::groups, (pairs + 1) * 4 + tiles * int64_t(sizeof(GroupTile)));
  }

  void attend(const AttendOp& o) {
    if (gpu_.options.deterministic && !has_spans(o.args.heads, o.kv->kv_heads, o.kv->k_dim)) return;
    const int64_t shares = decode_shares(o.args.heads, o.kv->kv_heads);
    need(Scratch::partial, gpu_.step->most_slots(most_.sequences) * partial_floats(shares, o.kv->v_dim) * 4);
    need(Scratch::arrived, arrived_room(most_.sequences, shares) * 4);
  }

  // Double buffered: one is read while the next is written.
  void half_norms(int64_t cols) {
    const int64_t parts = std::max<int64_t>((cols + kSumPartOne - 1) / kSumPartOne, gpu_.launch.n_sm);
    for (int i = 0; i < 2; i++) {
      need(Scratch::Use(Scratch::half_norm_x + i), kFewRows * cols * 2);
      need(Scratch::Use(Scratch::squares + i), std::max(kFewRows * parts, most_.tokens) * 4);  // with many rows, one part per row
    }
  }

  const Gpu& gpu_;
  const Program& program_;
  const StepLimits& most_;
  ScratchNeeds needs_{};
};

}  // namespace

ScratchNeeds scratch_needs(const Gpu& gpu, const Program& program, const StepLimits& most) { return Counter(gpu, program, most).count(); }

StateGroups groups_of(const Program& program) {
  std::set<int> paged, slots;
  for (const Op& op : program.whole.ops) {
    if (const AttendOp* o = op.get<AttendOp>()) paged.insert(o->kv->ref.group);
    if (const ShortConvOp* o = op.get<ShortConvOp>()) slots.insert(o->conv->state.ref.group);
    if (const DiagScanOp* o = op.get<DiagScanOp>()) slots.insert(o->scan->state.ref.group);
    if (const OuterScanOp* o = op.get<OuterScanOp>()) slots.insert(o->scan->state.ref.group);
  }
  return {int64_t(paged.size()), int64_t(slots.size())};
}

int64_t table_bytes(const Program& program) {
  int64_t bytes = 0;
  for (const Op& op : program.whole.ops) {
    if (const GroupedLinearOp* o = op.get<GroupedLinearOp>()) bytes += int64_t(o->experts.size() * sizeof(Packed));
    if (const AnglesOp* o = op.get<AnglesOp>())
      bytes += int64_t((o->rope->inv_freq.size() + o->rope->long_inv_freq.size()) * sizeof(float));
  }
  return bytes;
}

}  // namespace mr::cuda
