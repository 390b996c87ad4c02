// A program's list as text: one line per operation, with symbolic rows and its marks.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "program/program.h"

namespace mr {

struct ProgramLine {
  int index = 0, layer = -1;
  std::string_view kind;                    // "linear"
  std::string name;                         // of its weight: "q+k+v"
  std::string result;                       // "v4 [tokens, 960]", "v7 f32 [outputs, 49152]"; columns of a value: "v4+576 [tokens, 3×64]"
  std::string_view arrow;                   // "←" computes it, "+=" adds to it, "↻" updates it in place
  std::string operands;                     // what else it reads, in the same form
  std::string weight;                       // "[960, 576]", "8 × [64, 32]"; empty: none
  std::string_view format;                  // of the weight
  std::string details;                      // "window 24", "silu"
  std::vector<std::pair<Rule, int>> marks;  // that begin here, longest first, and how many operations each covers
  std::string brackets;                     // "┌┌", "│└": each mark from its first operation to its last

  std::string shape;  // all of the above without index, layer, value ids and marks: equal for operations of equal cost
};

std::vector<ProgramLine> lines_of(const Program&, const OpList&);

// For each layer, the first one with the same lines.
std::vector<int> first_alike(const std::vector<ProgramLine>&);

}  // namespace mr
