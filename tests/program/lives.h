// Lifetimes of values, implemented independently: from the first operation that touches one to the last, and throughout every mark that
// may run one of these. A value that is read first is an input; logits live past the end.
#pragma once

#include <algorithm>
#include <vector>

#include "program/program.h"

namespace mr::test {

// The operations during which a value needs its memory; none: it has no memory.
struct Alive {
  int first = -1, last = -1;
  explicit operator bool() const { return first >= 0; }
  bool meets(const Alive& o) const { return *this && o && first <= o.last && o.first <= last; }
};

inline std::vector<Alive> alive(const Program& program, const OpList& list) {
  const int n = int(list.ops.size());
  std::vector<Alive> all(program.values.size());
  std::vector<std::pair<int, int>> around;  // of each operation: the range that may be fused with it
  for (int i = 0; i < n; i++) around.emplace_back(i, i);
  for (const Mark& m : list.marks)
    for (int i = m.first; i < m.end(); i++)
      around[size_t(i)] = {std::min(around[size_t(i)].first, m.first), std::max(around[size_t(i)].second, m.end() - 1)};
  for (int i = 0; i < n; i++)
    for (auto [v, access] : touched(list.ops[size_t(i)])) {
      Alive& a = all[size_t(v.id)];
      const auto [first, last] = around[size_t(i)];
      if (!a) a.first = access == Access::write ? first : 0;
      a.first = std::min(a.first, first);
      a.last = std::max(a.last, last);
    }
  for (const Mark& m : list.marks)
    if (m.scratch >= 0) all[size_t(m.scratch)] = {m.first, m.end() - 1};
  if (Alive& logits = all[size_t(program.logits.id)]) logits.last = n;
  return all;
}

}  // namespace mr::test
