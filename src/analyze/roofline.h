// Lower bounds of operations' time on a chip: flops, bytes or messages, whichever takes longest (roofline, Williams et al. 2009).
#pragma once

#include "analyze/workload.h"

namespace mr {

struct Deployment {
  Chip chip;
  int tp = 1;        // tensor parallelism: chips that share every layer
  int replicas = 1;  // such groups, each with its own requests
};

enum class Roof : uint8_t { memory, compute, link };
std::string_view name_of(Roof);

// The share of one chip in tensor parallelism.
Operation part_of(Operation, int chips);

struct RoofTime {
  double seconds = 0;
  Roof bound = Roof::memory;
  double memory_s = 0, compute_s = 0;  // for its bytes alone, and for its flops alone
};
RoofTime time_of(const Operation&, const Deployment&);  // of the whole operation, on a group of chips

// A whole step: operations in sequence.
struct StepCost {
  double seconds = 0, bytes = 0, flops = 0;  // bytes and flops: of all chips together
  double memory_s = 0, compute_s = 0;        // for the bytes alone, and for the flops alone
  Roof bound = Roof::memory;                 // where most of the time goes
};
StepCost step_cost(std::span<const Operation>, const Deployment&);
inline StepCost step_cost(const ModelSpec& m, const Storage& s, const Phase& phase, const Deployment& d) {
  return step_cost(operations(m, s, phase, d.tp), d);
}

}  // namespace mr
