// An engine's allocations, planned in advance: weights, state, workspace, the backend's own memory. If they do not fit, an error
// lists them.
#pragma once

#include <string>

#include "engine/scheduler.h"
#include "model/model.h"
#include "state/memory_plan.h"

namespace mr {

struct EngineOptions;

struct EngineMemory {
  int64_t weights = 0, workspace = 0;  // workspace: for activations
  std::vector<OwnMemory> own;          // the backend's
  int max_context = 0;                 // tokens of one sequence
  MemoryPlan state;

  int64_t own_bytes() const;
  int64_t bytes() const { return weights + workspace + own_bytes() + state.bytes() + state.host_bytes(); }
  std::string text() const;  // one line each
};

SchedulerLimits limits_of(const EngineOptions&);
StepLimits step_limits(const SchedulerLimits&, int max_context, const Backend&);

// `model` may be an outline. `machine`: available memory; if it is a device's own, swap space is in host memory and does not count.
EngineMemory plan_engine(const Model&, const EngineOptions&, const Backend&, const DeviceMemory& machine);

}  // namespace mr
