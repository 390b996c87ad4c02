// Top-k experts by their logits.
#pragma once

#include "backend/cuda/device/device.cuh"

namespace mr::cuda {

// One warp: k times the largest remaining logit, ties to the lower id. A chosen logit becomes NaN; if only NaNs remain, the id is n.
__device__ inline void choose(float* x, int n, int k, int32_t* expert, float* weight, bool renormalize) {
  const int lane = threadIdx.x % 32;
  float largest = 0, total = 0;
  for (int j = 0; j < k; j++) {
    float best = -INFINITY;
    int id = n;
    for (int i = lane; i < n; i += 32)
      if (x[i] > best || (x[i] == best && i < id)) {
        best = x[i];
        id = i;
      }
    for (int d = 16; d; d >>= 1) {
      float other = __shfl_xor_sync(~0u, best, d);
      int other_id = __shfl_xor_sync(~0u, id, d);
      if (other > best || (other == best && other_id < id)) {
        best = other;
        id = other_id;
      }
    }
    if (j == 0) {
      largest = best;
      for (int i = lane; i < n && !renormalize; i += 32) total += expf(x[i] - largest);
      total = warp_sum(total);
    }
    if (renormalize) total += expf(best - largest);
    if (lane == 0) {
      expert[j] = id;
      weight[j] = expf(best - largest);
    }
    __syncwarp();
    if (lane == 0 && id < n) x[id] = NAN;
    __syncwarp();
  }
  for (int j = lane; j < k; j += 32) weight[j] /= total;
}

}  // namespace mr::cuda
