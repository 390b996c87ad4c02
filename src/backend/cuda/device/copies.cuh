// Bulk async copies into shared memory, and the mbarriers that count their bytes.
#pragma once

#include "backend/cuda/device/device.cuh"

namespace mr::cuda {

__device__ inline uint32_t shared_address(const void* p) { return uint32_t(__cvta_generic_to_shared(p)); }

__device__ inline void barrier_init(uint64_t* b, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(count) : "memory");
}
__device__ inline void barrier_expect(uint64_t* b, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(b)), "r"(bytes) : "memory");
}
__device__ inline void barrier_arrive(uint64_t* b) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(b)) : "memory");
}
__device__ inline void barrier_wait(uint64_t* b, int parity) {
  asm volatile(
      "{.reg .pred p;\n"
      "again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
      "@p bra done;\n"
      "bra again;\n"
      "done: }" ::"r"(shared_address(b)),
      "r"(parity)
      : "memory");
}
// L2 eviction policies for copies: evict first, evict last, evict normal.
inline constexpr uint64_t kReadOnce = 0x12F0000000000000, kReadAgain = 0x14F0000000000000, kNormal = 0x1000000000000000;

// Copies `bytes` contiguous bytes, a multiple of 16.
__device__ inline void copy_bytes(uint32_t to, const void* from, int bytes, uint64_t* barrier, uint64_t policy) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(to),
               "l"(from), "r"(bytes), "r"(shared_address(barrier)), "l"(policy)
               : "memory");
}

__device__ inline void arrive_at(uint64_t* barrier, int rank) {  // rank: block of the cluster
  asm volatile(
      "{.reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];}" ::"r"(shared_address(barrier)),
      "r"(rank)
      : "memory");
}

__device__ inline void cluster_sync() { asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory"); }

// Initializes the barriers of a ring that the blocks of a cluster fill and drain together; `empty` expects `arrivals` arrivals.
template <int kStages>
__device__ void begin_ring(uint64_t (&full)[kStages], uint64_t (&empty)[kStages], int arrivals) {
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; s++) {
      barrier_init(&full[s], 1);
      barrier_init(&empty[s], arrivals);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  cluster_sync();
}

}  // namespace mr::cuda
