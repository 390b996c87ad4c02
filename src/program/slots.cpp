// Memory assignment: each value has a slot, and values with disjoint lifetimes may share one. Lifetimes are ranges of operations; all
// values that a mark touches live throughout it. Slot sizes scale with the rows of a step, so only offsets are computed per step.
#include <algorithm>
#include <utility>

#include "program/program.h"

namespace mr {

static int64_t rounded(int64_t bytes) { return (bytes + 255) / 256 * 256; }

int64_t Slot::bytes(int64_t n_tokens, int64_t n_out) const {
  return rounded(std::max(bytes_per_token * n_tokens, bytes_per_output * n_out));
}

int64_t OpList::bytes(int64_t n_tokens, int64_t n_out) const {
  int64_t sum = 0;
  for (const Slot& slot : slots) sum += slot.bytes(n_tokens, n_out);
  return sum;
}

DType Program::dtype(int value) const {
  switch (values[size_t(value)].type) {
    case ValueType::activation:
      return activation;
    case ValueType::i32:
      return DType::i32;
    default:
      return DType::f32;
  }
}

int64_t Program::row_bytes(int value) const {
  const ValueInfo& info = values[size_t(value)];
  return info.cols * info.rows.times * size_of(dtype(value));
}

int64_t Program::workspace(int64_t max_tokens, int64_t max_out) const {
  const int64_t most_whole = std::min(max_tokens, 2 * max_out), most_tail_out = std::min(max_out, max_tokens / 2);  // see list()
  return std::max(whole.bytes(most_whole, max_out), tail.bytes(max_tokens, most_tail_out));
}

namespace {

struct Life {
  int begin = -1, end = -1;  // operations, both included
  void extend(int first, int last) {
    begin = begin < 0 ? first : std::min(begin, first);
    end = std::max(end, last);
  }
};

std::vector<Life> lives(const Program& program, const OpList& list) {
  std::vector<Life> life(program.values.size());
  for (int i = 0; i < int(list.ops.size()); i++)
    for (auto [v, access] : touched(list.ops[size_t(i)])) {
      const bool input = life[size_t(v.id)].begin < 0 && access != Access::write;  // written before the list runs
      life[size_t(v.id)].extend(input ? 0 : i, i);
    }
  for (const Mark& mark : list.marks) {
    if (mark.scratch >= 0) life[size_t(mark.scratch)].extend(mark.first, mark.end() - 1);
    for (int i = mark.first; i < mark.end(); i++)
      for (auto [v, access] : touched(list.ops[size_t(i)])) life[size_t(v.id)].extend(mark.first, mark.end() - 1);
  }
  life[size_t(program.logits.id)].extend(int(list.ops.size()), int(list.ops.size()));
  return life;
}

// A typical large step; slot sharing is optimized for it.
constexpr int64_t kTokens = 512, kOutputs = 80;

}  // namespace

void assign_slots(Program& program, OpList& list, bool share) {
  const std::vector<Life> life = lives(program, list);
  std::vector<int> order;
  for (int v = 0; v < int(life.size()); v++)
    if (life[size_t(v)].begin >= 0) order.push_back(v);
  std::ranges::stable_sort(order, {}, [&](int v) { return life[size_t(v)].begin; });
  list.slot_of.assign(program.values.size(), -1);
  list.slots.clear();
  std::vector<int> busy_until;
  for (int v : order) {
    const bool outputs = program.values[size_t(v)].rows.base == Rows::Base::outputs;
    auto with_value = [&](Slot slot) {
      int64_t& bytes = outputs ? slot.bytes_per_output : slot.bytes_per_token;
      bytes = std::max(bytes, program.row_bytes(v));
      return slot;
    };
    int best = -1;
    int64_t least_growth = 0, least_bytes = 0;
    for (int s = 0; share && s < int(list.slots.size()); s++) {
      if (busy_until[size_t(s)] >= life[size_t(v)].begin) continue;
      const int64_t bytes = list.slots[size_t(s)].bytes(kTokens, kOutputs);
      const int64_t growth = with_value(list.slots[size_t(s)]).bytes(kTokens, kOutputs) - bytes;
      if (best < 0 || growth < least_growth || (growth == least_growth && bytes < least_bytes)) {
        best = s;
        least_growth = growth;
        least_bytes = bytes;
      }
    }
    if (best < 0) {
      best = int(list.slots.size());
      list.slots.push_back({});
      busy_until.push_back(-1);
    }
    list.slot_of[size_t(v)] = best;
    list.slots[size_t(best)] = with_value(list.slots[size_t(best)]);
    busy_until[size_t(best)] = life[size_t(v)].end;
  }
}

void finish(Program& program, const ProgramOptions& options) {
  auto derive = [&](OpList& list) {
    for (Op& op : list.ops)
      for (auto [v, access] : touched(std::as_const(op))) op.rows = program.values[size_t(v.id)].rows.base;  // what it writes comes last
    find_next_norms(list);
    if (options.fuse) fuse(program, list);
  };
  derive(program.whole);
  record_tail(program);
  derive(program.tail);
  for (OpList* list : {&program.whole, &program.tail}) assign_slots(program, *list, options.share);
}

}  // namespace mr
