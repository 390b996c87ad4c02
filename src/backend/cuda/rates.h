// Whether there is a GPU that the kernels are for, and what it reads and multiplies, measured.
#pragma once

#include "backend/cuda/cuda_backend.h"

namespace mr::cuda {

std::string why_no_gpu();  // empty: there is one
DeviceRates rates_of(CudaBackend&);

}  // namespace mr::cuda
