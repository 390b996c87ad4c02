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

enum class Bound : uint8_t { memory, compute, link };
std::string_view name_of(Bound);

// What one of the chips that share a layer has of it.
Operation part_of(Operation, int chips);

struct RoofTime {
  double seconds = 0;
  Bound bound = Bound::memory;
  double memory_s = 0, compute_s = 0;  // for its bytes alone, and for its flops alone
};
RoofTime time_of(const Operation&, const Deployment&);  // of the whole operation, on all chips of a group

// A whole step: operations one after the other.
struct StepCost {
  double seconds = 0, bytes = 0, flops = 0;  // bytes and flops: of all chips together
  double memory_s = 0, compute_s = 0;        // for the bytes alone, and for the flops alone
  Bound bound = Bound::memory;               // where most of the time goes
};
StepCost step_cost(const ModelSpec&, const Storage&, std::span<const Phase> parts, const Deployment&, Rows of_last = Rows::all);
inline StepCost step_cost(const ModelSpec& m, const Storage& s, const Phase& phase, const Deployment& d) {
  return step_cost(m, s, std::span(&phase, 1), d);
}

}  // namespace mr
