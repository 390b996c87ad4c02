// Whether there is a supported GPU, and its measured memory bandwidth and matrix product rate.
#pragma once

#include "backend/cuda/cuda_backend.h"

namespace mr::cuda {

std::string why_no_gpu();  // empty: there is one
DeviceRates rates_of(CudaBackend&);

}  // namespace mr::cuda
