// Shared by both chains of operations, of one row and of several: blocks of eight worker warps, rings of mbarriers, the producer's
// pacing.
#pragma once

#include "backend/cuda/device/copies.cuh"

namespace mr::cuda {

inline constexpr int kWarps = 8, kWorkers = 32 * kWarps;  // worker warps, and their threads
inline constexpr int kTiles = 4;                          // of keys and values per stage
inline constexpr int kSteps = 8, kStepsAhead = 5;         // steps in shared memory; how far they are prefetched

// Launches one block per multiprocessor; the blocks synchronize with a grid barrier. A cooperative launch would start only when all
// previous kernels have ended; these blocks overlap their end and prefetch. All of them become resident eventually: earlier kernels do
// not wait for them, and later ones start only when all have called launch_next(). Chains of other backends never run at the same time
// (device/turns.h).
template <class... Params, class... Args>
void launch_on_all(const Launch& at, void (*kernel)(Params...), int threads, size_t shared, Args&&... args) {
  launch(at, kernel, dim3(unsigned(at.n_sm)), threads, shared, args...);
}

// Cursor in a ring of barriers.
struct Turn {
  int at = 0, parity = 0;
  __device__ void next(int size) {
    if (++at == size) {
      at = 0;
      parity ^= 1;
    }
  }
};

// State of the producer warp: only kInFlight stages are in flight at a time. That is enough to keep memory busy, and more would delay
// the traffic of the grid barrier (measured with one row: 1 reads at 3.0 TB/s, 2 at 4.2, 3 to 6 at 3.8 to 4.0).
inline constexpr int kInFlight = 2;
struct Fetching {
  int most = kInFlight;
  Turn turn{}, first{};
  int n = 0;
  // Waits until the next stage is free, and expects `bytes` in it.
  __device__ void begin(uint64_t* full, uint64_t* empty, int stages, int bytes) {
    barrier_wait(&empty[turn.at], turn.parity ^ 1);
    if (n == most) {
      barrier_wait(&full[first.at], first.parity);
      first.next(stages);
    } else {
      n++;
    }
    if (threadIdx.x % 32 == 0) barrier_expect(&full[turn.at], bytes);
    __syncwarp();
  }
};

__device__ inline unsigned peek(const unsigned* p) {
  unsigned v;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
__device__ inline void workers_meet() { asm volatile("bar.sync 1, %0;" ::"n"(kWorkers) : "memory"); }

// Each step starts at a different block, so that no block always has the larger share.
__device__ inline int rank_at(int step) { return int((blockIdx.x + unsigned(step) * 37) % gridDim.x); }

}  // namespace mr::cuda
