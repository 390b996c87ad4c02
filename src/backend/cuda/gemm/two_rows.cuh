// Two rows of bf16 weights that a warp streams from memory through registers, with eight 16-byte loads in flight for each.
#pragma once

#include "backend/cuda/device/device.cuh"

namespace mr::cuda {

struct TwoRows {
  static constexpr int kDepth = 8, kStep = 32 * 8;  // kStep: inputs per load of a warp
  const bf16 *a_row, *b_row;                        // of this lane
  const int left;                                   // inputs from this lane's first one
  uint4 a[kDepth], b[kDepth];

  __device__ TwoRows(const bf16* first, const bf16* second, int in)
      : a_row(first + threadIdx.x % 32 * 8), b_row(second + threadIdx.x % 32 * 8), left(in - int(threadIdx.x % 32) * 8) {
#pragma unroll
    for (int i = 0; i < kDepth; i++) fetch(i, i * kStep);
  }
  __device__ void fetch(int i, int from) {
    a[i] = b[i] = uint4{};
    if (from < left) {
      a[i] = stream16(a_row + from);
      b[i] = stream16(b_row + from);
    }
  }
};

}  // namespace mr::cuda
