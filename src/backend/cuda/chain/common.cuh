// What both chains of operations have in common, that of one row and that of several: blocks of eight working warps, rings of barriers,
// the pace of fetching.
#pragma once

#include "backend/cuda/device/copies.cuh"

namespace mr::cuda {

inline constexpr int kWarps = 8, kWorkers = 32 * kWarps;  // that work
inline constexpr int kTiles = 4;                          // of keys and values in a stage
inline constexpr int kSteps = 8, kStepsAhead = 5;         // steps that are at hand; of these, at most so many that nobody has begun

// A block on every multiprocessor, which wait for each other. A cooperative launch would begin when all before it has ended; these begin
// beside its end and prefetch. Every one finds room in the end: what runs before them does not wait for them, and what comes after begins
// when all of them have called launch_next(). That holds for one engine a GPU: two at once may take half of the multiprocessors each and
// wait for ever.
template <class... Params, class... Args>
void launch_on_all(const Launch& at, void (*kernel)(Params...), int threads, size_t shared, Args&&... args) {
  launch(at, kernel, dim3(unsigned(at.n_sm)), threads, shared, args...);
}

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

// The warp that fetches: only kInFlight stages are under way at a time. That is enough to keep memory busy, and more would stand in the
// way of what blocks tell each other (measured of one row: 1 reads at 3.0 TB/s, 2 at 4.2, 3 to 6 at 3.8 to 4.0).
inline constexpr int kInFlight = 2;
struct Fetching {
  Turn turn, first;
  int n = 0;
  // The next stage, of so many bytes, once it is free.
  __device__ void begin(uint64_t* full, uint64_t* empty, int stages, int bytes) {
    barrier_wait(&empty[turn.at], turn.parity ^ 1);
    if (n == kInFlight) {
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

// Steps begin at another block each, so that no block always has the larger share.
__device__ inline int rank_at(int step) { return int((blockIdx.x + unsigned(step) * 37) % gridDim.x); }

}  // namespace mr::cuda
