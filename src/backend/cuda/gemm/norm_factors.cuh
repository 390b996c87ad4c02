// The second half of an RMS norm, done by the product that reads it: a factor per row.
#pragma once

#include "backend/cuda/device/device.cuh"
#include "backend/cuda/gemm/gemm.h"
#include "backend/cuda/rows/half_norm.cuh"

namespace mr::cuda {

__device__ inline float factor_of(const Product& p, float squares) { return rsqrtf(squares / float(p.in) + p.eps); }

// The factors of rows [row0, row0 + rows) of x, by one warp: four rows at a time, eight lanes for each.
__device__ inline void norm_factors(const Product& p, int row0, int rows, float* factor) {
  const int lane = threadIdx.x % 32, parts = int(p.n_squares);
  const float* squares = p.squares + int64_t(row0) * parts;
  if (parts == 1) {  // the same sum, one row per lane
    for (int r = lane; r < rows; r += 32) factor[r] = factor_of(p, __ldcg(squares + r));
    return;
  }
  const bool fours = parts % 4 == 0;
#pragma unroll 2
  for (int r = lane / 8; r < rows; r += 4) {
    const float* from = squares + int64_t(r) * parts;
    const float sum = squares_of(parts, [&](int i) {
      return fours ? __ldcg(reinterpret_cast<const float4*>(from) + i) : four_parts(parts, i, [&](int k) { return __ldcg(from + k); });
    });
    if (lane % 8 == 0) factor[r] = factor_of(p, sum);
  }
}

}  // namespace mr::cuda
