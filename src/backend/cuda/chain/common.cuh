// What both chains of operations have in common, that of one row and that of several: blocks of eight working warps, rings of barriers,
// and what the warps of an attention share.
#pragma once

#include "backend/cuda/attention/warp.cuh"

namespace mr::cuda {

inline constexpr int kWarps = 8, kWorkers = 32 * kWarps;  // that work
inline constexpr int kTiles = 4;                          // of keys and values in a stage
inline constexpr int kSteps = 8, kStepsAhead = 5;         // steps that are at hand; of these, at most so many that nobody has begun

// Where a walk through a ring of barriers is.
struct Turn {
  int at = 0, parity = 0;
  __device__ void next(int size) {
    if (++at == size) {
      at = 0;
      parity ^= 1;
    }
  }
};

__device__ inline unsigned peek(const unsigned* p) {
  unsigned v;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
__device__ inline void workers_meet() { asm volatile("bar.sync 1, %0;" ::"n"(kWorkers) : "memory"); }

// Steps begin at another block each, so that no block always has the larger share.
__device__ inline int rank_at(int step) { return int((blockIdx.x + unsigned(step) * 37) % gridDim.x); }

// [D] sums of a head, the largest score, the sum of weights.
template <int D>
inline constexpr int kPart = D + kPartExtra;

// What the warps of an attention share.
template <int D>
struct Mixing {
  uint4 turned[kGroup + 2][D / 8];  // the query heads of a group, rotated; behind them the new key, and the new value
  // What warp w found of head h; [kWarps][heads of a group] of them lie behind this.
  __device__ float* found(int w, int group, int h) { return reinterpret_cast<float*>(this + 1) + (w * group + h) * kPart<D>; }
};

// Two neighbouring values that the warps of a block, or blocks, have found of a head, and their weights: the largest score, the sum.
struct Found {
  float most = -INFINITY, total = 0, x = 0, y = 0;
};

}  // namespace mr::cuda
