// Copies units of state within the device and to and from the host.
#pragma once

#include <span>

#include "backend/cuda/device/device.h"

namespace mr::cuda {

void copy_units(cudaStream_t, std::span<const UnitCopy>, const StateMemory& state, const StateMemory& host);

}  // namespace mr::cuda
