// A program's list as lines to read: one for each operation, with symbolic rows and the marks beside it.
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
  std::string result;                       // "v4 [tokens, 960]", "v7 f32 [outputs, 49152]"; of a part of a value "v4+576 [tokens, 3×64]"
  std::string_view arrow;                   // "←" makes it of the operands, "+=" adds to it, "↻" changes it in place
  std::string operands;                     // what else it reads, in the same way
  std::string weight;                       // "[960, 576]", "8 × [64, 32]"; empty: none
  std::string_view format;                  // that it is stored in
  std::string details;                      // "window 24", "silu"
  std::vector<std::pair<Rule, int>> marks;  // that begin here, the longest first, and how many operations each takes
  std::string brackets;                     // "┌┌", "│└": each mark from its first operation to its last

  std::string shape;  // all of the above but index, layer, the values' numbers and the marks: equal for operations that cost the same
};

std::vector<ProgramLine> lines_of(const Program&, const OpList&);

// Of each layer, the first one whose lines are the same.
std::vector<int> first_alike(const std::vector<ProgramLine>&);

}  // namespace mr
