// The list for steps of few outputs: most rows of a prompt only contribute their state, so after the last operation that reads or
// writes state, only the outputs continue. Values that they need from before are gathered at the cut.
#include <algorithm>
#include <map>
#include <set>

#include "core/error.h"
#include "program/program.h"

namespace mr {

namespace {

struct Columns {
  int64_t first, end;
};

class Tail {
 public:
  explicit Tail(Program& program) : program_(program), from_(program.whole.ops) {}

  std::vector<Op> record() {
    const size_t cut = find_cut();
    ops_.assign(from_.begin(), from_.begin() + std::ptrdiff_t(cut));
    collect_needed(cut);
    for (auto [id, columns] : needed_) gather(id, columns);
    for (size_t i = cut; i < from_.size(); i++) go_on(from_[i]);
    return std::move(ops_);
  }

 private:
  // The cut is after the last operation that reads rows. Operations that may be fused with it stay before the cut, since separately
  // they might round differently. Except a product, which is what the tail should save.
  size_t find_cut() const {
    int cut = int(from_.size());
    while (cut > 0 && !reads_rows(from_[size_t(cut) - 1].kind)) cut--;
    for (int i = cut; i < int(from_.size()); i++)
      if (const GatherOp* g = from_[size_t(i)].get<GatherOp>(); g && !stay_equal(*g, i + 1)) cut = i + 1;
    for (const Mark& mark : program_.whole.marks)
      if (!joins_two(mark.rule) && mark.first < cut) cut = std::max(cut, mark.end());
    return size_t(cut);
  }

  // Whether the gathered rows and their source stay equal for all that follows. Then one value can replace both.
  bool stay_equal(const GatherOp& g, int from) const {
    bool gathered_changes = false, source_touched = false;
    for (size_t i = size_t(from); i < from_.size(); i++)
      for (auto [v, access] : touched(from_[i])) {
        if (v.id == g.x.id && access != Access::read) return false;
        source_touched |= v.id == g.x.id;
        gathered_changes |= v.id == g.out.id && access != Access::read;
      }
    return !(gathered_changes && source_touched);
  }

  bool of_tokens(int id) const { return program_.values[size_t(id)].rows.base == Rows::Base::tokens; }

  // Columns of values from before the cut that are touched after it.
  void collect_needed(size_t cut) {
    std::set<int> made_before, made_behind;
    for (size_t i = 0; i < cut; i++)
      for (auto [v, access] : touched(from_[i])) made_before.insert(v.id);
    for (size_t i = cut; i < from_.size(); i++)
      for (auto [v, access] : touched(from_[i])) {
        if (access == Access::write && !made_before.contains(v.id)) made_behind.insert(v.id);
        if (!of_tokens(v.id) || made_behind.contains(v.id)) continue;
        Columns& columns = needed_.try_emplace(v.id, Columns{v.first, v.first + v.cols}).first->second;
        columns = {std::min(columns.first, v.first), std::max(columns.end, v.first + v.cols)};
      }
  }

  Value outputs_of(int id, Columns columns) {
    ValueInfo info = program_.values[size_t(id)];
    info.rows.base = Rows::Base::outputs;
    info.cols = columns.end - columns.first;
    program_.values.push_back(info);
    moved_[id] = {int(program_.values.size()) - 1, columns.first};
    return {moved_[id].id, 0, info.cols};
  }

  void gather(int id, Columns columns) {
    check(program_.values[size_t(id)].rows.times == 1, "a program's tail cannot gather rows of experts");
    Value out = outputs_of(id, columns);
    ops_.push_back({GatherOp{out, {id, columns.first, columns.end - columns.first}}});
  }

  void go_on(Op op) {
    if (auto* g = std::get_if<GatherOp>(&op.kind)) {  // its rows are already gathered
      const Moved x = moved_.at(g->x.id);
      moved_[g->out.id] = {x.id, x.first - g->x.first};
      return;
    }
    for (const Touched& t : touched(op)) {
      Value& v = *t.value;
      if (of_tokens(v.id) && !moved_.contains(v.id)) outputs_of(v.id, {0, program_.values[size_t(v.id)].cols});
      if (auto to = moved_.find(v.id); to != moved_.end()) v = {to->second.id, v.first - to->second.first, v.cols, v.heads};
    }
    ops_.push_back(std::move(op));
  }

  struct Moved {
    int id;
    int64_t first;  // column of the old value that became column 0
  };
  Program& program_;
  const std::vector<Op>& from_;
  std::vector<Op> ops_;
  std::map<int, Columns> needed_;
  std::map<int, Moved> moved_;
};

}  // namespace

void record_tail(Program& program) { program.tail.ops = Tail(program).record(); }

}  // namespace mr
