// What a step of a recorded program must compute and move: its own list, under the names and with the laws of the closed forms.
#pragma once

#include "analyze/workload.h"
#include "program/program.h"

namespace mr {

class ProgramCosts {
 public:
  explicit ProgramCosts(const Program&);  // which must live on
  // As operations() of a specification, for the list that such a step takes. Weights count as they lie in memory, unless the storage
  // says that they are to have another format.
  std::vector<Operation> operations(const Storage&, std::span<const Phase> parts, int chips = 1) const;

 private:
  struct Alike {  // operations that cost the same
    const Op* op;
    std::string name;          // in reports
    int count = 0, times = 0;  // how many; how many of them are not another part of the one before
  };
  std::vector<Alike> fold(const OpList&) const;

  const Program& program_;
  std::vector<Alike> whole_, tail_;
};

}  // namespace mr
