// The half of a root mean square norm that the product after it does: the factors of its rows.
#pragma once

#include "backend/cuda/device/device.cuh"
#include "backend/cuda/gemm/gemm.h"

namespace mr::cuda {

// The factors of rows [row0, row0 + rows) of x, by one warp: four rows at a time, eight lanes for each.
__device__ inline void norm_factors(const Product& p, int row0, int rows, float* factor) {
  const int lane = threadIdx.x % 32, parts = int(p.n_squares);
#pragma unroll 2
  for (int r = lane / 8; r < rows; r += 4) {
    const float* from = p.squares + int64_t(row0 + r) * parts;
    float sum = 0;
#pragma unroll 8
    for (int i = lane % 8; i < parts; i += 8) sum += __ldcg(from + i);
    for (int i = 4; i; i >>= 1) sum += __shfl_xor_sync(0xffu << (lane & 24), sum, i);
    if (lane % 8 == 0) factor[r] = rsqrtf(sum / float(p.in) + p.eps);
  }
}

}  // namespace mr::cuda
