// What an engine will allocate, known before it does: weights, state, workspace. What cannot fit is an error with the sum.
#pragma once

#include <string>

#include "engine/scheduler.h"
#include "model/model.h"
#include "state/memory_plan.h"

namespace mr {

struct EngineOptions;

struct EngineMemory {
  int64_t weights = 0, workspace = 0;
  int max_context = 0;  // tokens of one sequence
  MemoryPlan state;

  int64_t bytes() const { return weights + workspace + state.bytes() + state.host_bytes(); }
  std::string text() const;  // a line for each
};

SchedulerLimits limits_of(const EngineOptions&);

// `model` may be an outline. `machine`: bytes that there are; own: nobody else needs any of them, and what is swapped goes elsewhere.
EngineMemory plan_engine(const Model&, const EngineOptions&, int64_t machine, bool own = false);

}  // namespace mr
