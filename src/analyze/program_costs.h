// Flops and bytes of a step of a recorded program, under the names and with the laws of the closed forms.
#pragma once

#include "analyze/workload.h"
#include "program/program.h"

namespace mr {

class ProgramCosts {
 public:
  explicit ProgramCosts(const Program&);  // must outlive this
  // Like operations() of a specification, for the list that runs in such a step. Weights count as they are in memory, unless the storage
  // names another format.
  std::vector<Operation> operations(const Storage&, std::span<const Phase> parts, int chips = 1) const;

 private:
  struct Alike {  // operations that cost the same
    const Op* op;
    std::string name;          // in reports
    int count = 0, times = 0;  // all; those that are not a continuation of the previous one
  };
  std::vector<Alike> fold(const OpList&) const;

  const Program& program_;
  std::vector<Alike> whole_, tail_;
};

}  // namespace mr
