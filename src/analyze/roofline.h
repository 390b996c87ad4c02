// How long operations take at least on a chip: each as long as its flops, its bytes or its messages need, whichever is most
// (Williams et al. 2009).
#pragma once

#include "analyze/workload.h"

namespace mr {

struct Deployment {
  Chip chip;
  int tp = 1;        // chips that share every layer
  int replicas = 1;  // such groups, each with requests of its own
};

enum class Roof : uint8_t { memory, compute, link };
std::string_view name_of(Roof);

// What one of the chips that share a layer has of it.
Operation part_of(Operation, int chips);

struct RoofTime {
  double seconds = 0;
  Roof bound = Roof::memory;
  double memory_s = 0, compute_s = 0;  // for its bytes alone, and for its flops alone
};
RoofTime time_of(const Operation&, const Deployment&);  // of the whole operation, on all chips of a group

// A whole step: operations one after the other.
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
