// Runs a list in order: each mark is offered before its operations, the longest first.
#pragma once

#include "program/bound.h"

namespace mr {

// take(mark): true if it was run. run(i): a single operation. done(first, count): after either. Marks and operations without rows
// are skipped.
template <class Take, class Run, class Done>
void walk(const Bound& at, Take take, Run run, Done done) {
  const std::vector<Op>& ops = at.list().ops;
  const std::vector<Mark>& marks = at.list().marks;
  size_t next = 0;  // mark
  for (int i = 0; i < int(ops.size());) {
    if (!at.runs(ops[size_t(i)])) {
      i++;
      continue;
    }
    while (next < marks.size() && marks[next].first < i) next++;
    int count = 0;
    for (; count == 0 && next < marks.size() && marks[next].first == i; next++)
      if (take(marks[next])) count = marks[next].count;
    if (count == 0) {
      run(i);
      count = 1;
    }
    done(i, count);
    i += count;
  }
}

}  // namespace mr
