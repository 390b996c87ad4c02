// What an engine will allocate, known before it does: weights, state, workspace, what the backend keeps for itself. What cannot fit is
// an error with the sum.
#pragma once

#include <string>

#include "engine/scheduler.h"
#include "model/model.h"
#include "state/memory_plan.h"

namespace mr {

struct EngineOptions;

struct EngineMemory {
  int64_t weights = 0, workspace = 0;  // workspace: of activations
  std::vector<OwnMemory> own;          // the backend's
  int max_context = 0;                 // tokens of one sequence
  MemoryPlan state;

  int64_t own_bytes() const;
  int64_t bytes() const { return weights + workspace + own_bytes() + state.bytes() + state.host_bytes(); }
  std::string text() const;  // a line for each
};

SchedulerLimits limits_of(const EngineOptions&);
StepLimits step_limits(const SchedulerLimits&, int max_context);

// `model` may be an outline. `machine`: what there is; where it is the backend's own, what is swapped goes elsewhere.
EngineMemory plan_engine(const Model&, const EngineOptions&, const Backend&, const DeviceMemory& machine);

}  // namespace mr
