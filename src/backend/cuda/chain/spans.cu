// Deterministic attention of one new token per sequence, as the chain of rows does it: a block has an item and a K/V head. A producer warp
// copies keys and values, from earlier steps before the previous kernel has ended; two blocks on a multiprocessor hide each other's start
// and end. Reads 2 * D * 2 bytes per token and K/V head.
#include "backend/cuda/attention/pages_map.cuh"
#include "backend/cuda/chain/rows.h"
#include "backend/cuda/chain/spans.cuh"

namespace mr::cuda {

namespace {

constexpr int kStages = 3, kThreads = kWorkers + 32;
template <int D>
constexpr int kBytes = kStages * SpanStage<D>::bytes + int(sizeof(SpanRoom<D>)) + 1024;

struct Shared {
  uint64_t full[kStages], empty[kStages];
  int last;
};

template <int D>
__global__ void __launch_bounds__(kThreads, kDecodeBlocks)
    spans_kernel(const __grid_constant__ CUtensorMap map, const __grid_constant__ AttendCall call,
                 const __grid_constant__ DecodePlan plan) {
  constexpr int kStage = SpanStage<D>::bytes;
  extern __shared__ char raw[];
  __shared__ Shared shared;
  char* ring = raw + (-shared_address(raw) & 1023u);
  const Part part = part_of<kSpanTile>(call, plan.item[blockIdx.x], int(blockIdx.y));
  if (part.count == 0) return wait_before();
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; s++) {
      barrier_init(&shared.full[s], 1);
      barrier_init(&shared.empty[s], kWarps);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  if (threadIdx.x >= kWorkers) {
    if (!call.k.data) wait_before();  // the previous kernel stored this step's keys
    Fetching fetching{kStages};
    fetch_spans<D>(shared_address(ring), kStage, kStages, shared.full, shared.empty, map, call, part, fetching);
    return launch_next();
  }
  wait_before();
  Turn turn;
  auto stages = [&](auto f) {
#pragma unroll 1
    for (int i = 0; i < part.n_tiles; i++, turn.next(kStages)) {
      barrier_wait(&shared.full[turn.at], turn.parity);
      f(i, ring + turn.at * kStage);
      __syncwarp();
      if (threadIdx.x % 32 == 0) barrier_arrive(&shared.empty[turn.at]);
    }
  };
  SpanAttend<D>{*reinterpret_cast<SpanRoom<D>*>(ring + kStages * kStage), call, plan, part}.run(shared.last, stages);
}

template <int D>
void run(const Launch& at, const AttendCall& call, const DecodePlan& plan) {
  launch(at, spans_kernel<D>, grid2(plan.grid, call.pages.kv_heads), kThreads, kBytes<D>, pages_map(call.pages, span_piece(call.pages)),
         call, plan);
}

}  // namespace

bool can_span(const AttendCall& c) { return has_spans(c.heads, c.pages.kv_heads, c.pages.k_dim) && can_decode(c) && can_prefill(c); }

void attend_spans(const Launch& at, const AttendCall& call, const DecodePlan& plan) {
  call.pages.k_dim == 128 ? run<128>(at, call, plan) : run<64>(at, call, plan);
}

}  // namespace mr::cuda
