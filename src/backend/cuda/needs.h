// Device memory that a program's steps need beside weights, state and arena, computed before any of them runs: it is reserved when
// the program is prepared, so that no buffer moves under a captured graph, and the memory plan counts it.
#pragma once

#include <array>

#include "backend/cuda/gpu.h"

namespace mr::cuda {

using ScratchNeeds = std::array<int64_t, Scratch::n_uses>;  // bytes of each piece
ScratchNeeds scratch_needs(const Gpu&, const Program&, const StepLimits&);

StateGroups groups_of(const Program&);

int64_t table_bytes(const Program&);  // upper bound of Tables

}  // namespace mr::cuda
