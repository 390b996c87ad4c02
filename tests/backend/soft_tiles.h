// AMX's matrix products on emulated tiles, for machines without AMX.
#pragma once

#include "backend/cpu/linear_kernels.h"

namespace mr {

const LinearKernels& soft_tile_kernels();  // runs on AVX-512 with VNNI

}  // namespace mr
