// Products and attentions of up to 16 rows of different sequences in one persistent kernel, as one_row.cu does for one row: a block on
// every multiprocessor runs the whole program, a producer warp prefetches the weights, keys and values of all steps in turn, as far
// ahead as a ring has room, and a grid barrier ends each step. A second producer warp copies x, once all blocks have finished the
// previous step, through a separate ring. Reads every weight, key and value once, and x from L2 once per pass of each block.
//
// A stage of the ring is some boxes of eight weight rows by some chunks of 64 inputs, swizzled for wgmma, or four tiles of 16 keys and
// values. Each of the two warpgroups multiplies 64 of a pass's rows, or half of the inputs of all, and all eight warps run the
// epilogue from sums in shared memory.
#include <type_traits>

#include "backend/cuda/attention/pages_map.cuh"
#include "backend/cuda/chain/rows_product.cuh"
#include "backend/cuda/gemm/norm_factors.cuh"

namespace mr::cuda {

namespace {

struct Program {
  const RowsStep* step;
  int n;
  ChainMemory memory;
  DecodePlan plan;
};

__device__ void fence_copies() { asm volatile("fence.proxy.async;" ::: "memory"); }  // orders generic and async-proxy accesses

// Copies the keys and values of the block's parts, and publishes the parts to the workers.
template <bool Fixed>
__device__ void fetch(Shared& shared, uint32_t ring, const Program& program, const AttendCall& call, int step, Turn& part_turn,
                      Fetching& fetching) {
  constexpr int kTokens = Fixed ? kSpanTile : kTile;
  const int n = program.plan.grid * call.pages.kv_heads;
  for (int unit = rank_at(step); unit < n; unit += int(gridDim.x), part_turn.next(kParts)) {
    const Part part = part_of<kTokens>(call, program.plan.item[unit / call.pages.kv_heads], unit % call.pages.kv_heads);
    barrier_wait(&shared.part_empty[part_turn.at], part_turn.parity ^ 1);
    if (threadIdx.x % 32 == 0) {
      shared.part[part_turn.at] = part;
      barrier_arrive(&shared.part_full[part_turn.at]);
    }
    if constexpr (Fixed) {
      auto fetch = [&](auto dim) {
        fetch_spans<decltype(dim)::value>(ring, kStage, kStages, shared.full, shared.empty, program.step[step].weight, call, part,
                                          fetching);
      };
      call.pages.k_dim == 128 ? fetch(std::integral_constant<int, 128>()) : fetch(std::integral_constant<int, 64>());
    } else {
      fetch_part(ring, kStage, kStages, shared.full, shared.empty, call, part, fetching);
    }
  }
}

__device__ void begin(Shared& shared) {
  for (int s = 0; s < kStages; s++) {
    barrier_init(&shared.full[s], 1);
    barrier_init(&shared.empty[s], kWarps);
  }
  for (int s = 0; s < 6; s++) {
    barrier_init(&shared.x_full[s], 1);
    barrier_init(&shared.x_empty[s], kWarps);
  }
  for (int s = 0; s < kSteps; s++) {
    barrier_init(&shared.step_full[s], 1);
    barrier_init(&shared.step_empty[s], kWarps + 2);
  }
  for (int s = 0; s < kParts; s++) {
    barrier_init(&shared.part_full[s], 1);
    barrier_init(&shared.part_empty[s], kWarps);
  }
  barrier_init(&shared.go, 1);
  barrier_init(&shared.factors, 1);
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// The producer warp: steps, weights, keys and values.
template <bool Fixed>
__device__ void fetch_steps(const Program& program, Shared& shared, uint32_t ring) {
  const int lane = threadIdx.x % 32;
  Fetching fetching;
  Turn part_turn;
  auto fetch_step = [&](int i) {
    if (i >= program.n) return;
    barrier_wait(&shared.step_empty[i % kSteps], (i / kSteps & 1) ^ 1);
    const RowsStep* step = program.step + i;
    if (lane < 2) asm volatile("prefetch.tensormap [%0];" ::"l"(lane == 0 ? &step->weight : &step->x) : "memory");
    if (lane > 0) return;
    barrier_expect(&shared.step_full[i % kSteps], sizeof(RowsWork));
    copy_bytes(shared_address(&shared.work[i % kSteps]), &step->work, sizeof(RowsWork), &shared.step_full[i % kSteps], kReadAgain);
  };
  for (int i = lane; i < program.n; i += 32) acquire_map(program.step[i].weight);
  __syncwarp();
  for (int i = 0; i <= kStepsAhead; i++) fetch_step(i);
  for (int i = 0; i < program.n; i++) {
    const int at = i % kSteps;
    barrier_wait(&shared.step_full[at], i / kSteps & 1);
    const RowsWork& work = shared.work[at];
    if (work.step.attends()) {
      wait_before();  // keys of earlier steps
      fetch<Fixed>(shared, ring, program, work.step.attend, i, part_turn, fetching);
    } else {
      fetch<Fixed>(shared, ring, program.step[i].weight, work, i, fetching);
    }
    __syncwarp();
    fetch_step(i + 1 + kStepsAhead);
  }
}

// The second producer warp: waits at the grid barrier, then copies x.
template <int N, bool Fixed>
__device__ void lead(const Program& program, Shared& shared, uint32_t x_ring) {
  const int lane = threadIdx.x % 32;
  for (int i = lane; i < program.n; i += 32) acquire_map(program.step[i].x);
  __syncwarp();
  wait_before();
  Turn turn;
  for (int i = 0; i < program.n; i++) {
    const int at = i % kSteps;
    barrier_wait(&shared.step_full[at], i / kSteps & 1);
    while (peek(program.memory.arrived) < unsigned(i) * gridDim.x) {
    }
    fence_copies();
    if (lane == 0) barrier_arrive(&shared.go);
    if (!shared.work[at].step.attends()) fetch_x<N, Fixed>(shared, x_ring, program.step[i].x, shared.work[at], turn);
    __syncwarp();
    if (lane == 0) barrier_arrive(&shared.step_empty[at]);
  }
}

// The block's parts of an attention.
template <bool Fixed>
__device__ void attend_parts(const Program& program, Shared& shared, char* ring, const AttendCall& call, int step, Turn& turn,
                             Turn& part_turn) {
  const int lane = threadIdx.x % 32;
  char* room = ring + kStages * kStage;
  const int n = program.plan.grid * call.pages.kv_heads;
  for (int unit = rank_at(step); unit < n; unit += int(gridDim.x), part_turn.next(kParts)) {
    barrier_wait(&shared.part_full[part_turn.at], part_turn.parity);
    const Part& part = shared.part[part_turn.at];
    auto stages = [&](auto f) {
      for (int s = 0; s * (Fixed ? 1 : kTiles) < part.n_tiles; s++, turn.next(kStages)) {
        barrier_wait(&shared.full[turn.at], turn.parity);
        f(s, ring + turn.at * kStage);
        __syncwarp();
        if (lane == 0) barrier_arrive(&shared.empty[turn.at]);
      }
    };
    workers_meet();  // the previous part's scratch is free
    auto attend = [&](auto dim) {
      constexpr int D = decltype(dim)::value;
      if constexpr (Fixed) {
        SpanAttend<D>{*reinterpret_cast<SpanRoom<D>*>(room), call, program.plan, part}.run(shared.softmaxes.last, stages);
      } else {
        attend_part(shared.softmaxes, *reinterpret_cast<Mixing<D>*>(room), call, program.plan, part, stages);
      }
    };
    if (part.count > 0) call.pages.k_dim == 128 ? attend(std::integral_constant<int, 128>()) : attend(std::integral_constant<int, 64>());
    __syncwarp();
    if (lane == 0) barrier_arrive(&shared.part_empty[part_turn.at]);
  }
}

template <int N, bool Fixed>
__device__ void work(const Program& program, Shared& shared, char* ring) {
  const int lane = threadIdx.x % 32;
  const uint32_t base = shared_address(ring);
  char* room = ring + kStages * kStage;
  unsigned* arrived = program.memory.arrived;
  Turn turn, x_turn, part_turn;
  for (int i = 0; i < program.n; i++) {
    const int at = i % kSteps;
    barrier_wait(&shared.step_full[at], i / kSteps & 1);
    const RowsWork& work = shared.work[at];
    const Units mine = work.step.attends() ? Units{} : units_of(work, i);
    barrier_wait(&shared.go, i & 1);
    if (work.step.attends()) {
      attend_parts<Fixed>(program, shared, ring, work.step.attend, i, turn, part_turn);
    } else {
      run_product<N, Fixed>(shared, base, room, work, i, mine, turn, x_turn);
    }
    barrier_wait(&shared.factors, i & 1);  // the norm warp is done with this step
    fence_copies();
    workers_meet();
    if (threadIdx.x == 0) asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(arrived) : "memory");
    if (lane == 0) barrier_arrive(&shared.step_empty[at]);
  }
  if (threadIdx.x > 0) return;
  unsigned before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(arrived + 1) : "memory");
  if (before == gridDim.x - 1) arrived[0] = arrived[1] = 0;  // all blocks have passed the last barrier
}

template <int N, bool Fixed>
__global__ void __launch_bounds__(kThreads, 1) rows_kernel(const Program program) {
  extern __shared__ char raw[];
  char* ring = raw + (-shared_address(raw) & 1023u);
  __shared__ __align__(16) char shared_room[sizeof(Shared)];  // raw bytes: __shared__ objects may not have constructors
  Shared& shared = *reinterpret_cast<Shared*>(shared_room);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) begin(shared);
  __syncthreads();
  launch_next();
  if (warp < kWarps) {
    work<N, Fixed>(program, shared, ring);
  } else if (warp == kWarps) {
    fetch_steps<Fixed>(program, shared, shared_address(ring));
  } else if (warp == kWarps + 1) {
    lead<N, Fixed>(program, shared, shared_address(ring) + kStages * kStage);
  } else {
    for (int i = 0; i < program.n; i++) {
      const int at = i % kSteps;
      barrier_wait(&shared.step_full[at], i / kSteps & 1);
      barrier_wait(&shared.go, i & 1);
      const ChainStep& step = shared.work[at].step;
      if (!step.attends() && step.product.squares) norm_factors(step.product, 0, int(step.product.x.rows), shared.factor);
      __syncwarp();
      if (lane > 0) continue;
      barrier_arrive(&shared.factors);
      barrier_arrive(&shared.step_empty[at]);
    }
  }
}

// Boxes per pass, and number of passes.
std::pair<int64_t, int64_t> boxes_of(const Launch& at, const Product& p) {
  const int64_t each = p.gated ? 2 : 1, unit = p.next.fixed ? kFixedPart / 8 : 1;
  const int64_t units = div_up(p.out / (8 * each * unit), at.n_sm), passes = div_up(units * unit * each, kMostBoxes);
  return {div_up(units, passes) * unit * each, passes};
}

}  // namespace

bool can_chain_rows(const Launch& at, const ChainStep& s) {
  const Pages& pages = s.attend.pages;
  if (s.attends())
    return s.attend.q.rows <= kChainRows && s.attend.k.data && pages.k_dim <= 128 && s.attend.heads <= kGroup * pages.kv_heads &&
           can_decode(s.attend);
  const Product& p = s.product;
  if (at.deterministic && ((p.next.fixed && p.out % kFixedPart) || (fixed_split(at, p) > 1 && boxes_of(at, p).first > 8))) return false;
  return p.x.rows <= kChainRows && p.conv.n == 0 && p.in % kChunk == 0 && p.out % (p.gated ? 16 : 8) == 0;
}

RowsStep rows_step(const Launch& at, const ChainStep& s) {
  RowsStep r{{}, {}, {s}};
  if (s.attends()) {
    if (at.deterministic) r.weight = pages_map(s.attend.pages, span_piece(s.attend.pages));
    return r;
  }
  const Product& p = s.product;
  const int64_t n_chunks = p.in / kChunk;
  const auto [boxes, passes] = boxes_of(at, p);
  r.work.passes = int(passes);
  r.work.boxes = int(boxes);
  r.work.unit = p.next.fixed ? kFixedPart / 8 : 1;
  r.work.split = at.deterministic ? fixed_split(at, p) : 1;
  r.work.part = int(div_up(n_chunks, r.work.split));
  const int most = int(std::min<int64_t>({kMostChunks, kStageBoxes / boxes, r.work.part}));
  auto too_many = [&](int chunks) { return div_up(r.work.part, chunks) * chunks - r.work.part; };
  r.work.chunks = most;
  for (int chunks = most; r.work.split > 1 && chunks > most / 2; chunks--)  // chunks of a stage beyond the part are read in vain
    if (too_many(chunks) < too_many(r.work.chunks)) r.work.chunks = chunks;
  r.weight = tensor_map(p.weight, {kChunk, p.out, n_chunks}, {p.in * 2, kChunk * 2}, {kChunk, 8, r.work.chunks});
  r.x = tensor_map(p.x.data, {kChunk, p.x.rows, n_chunks}, {p.x.stride * 2, kChunk * 2}, {kChunk, 8, r.work.chunks});
  return r;
}

void chain_rows(const Launch& at, const RowsStep* device, int n, int rows, const ChainMemory& memory, const DecodePlan& plan) {
  const auto kernel = at.deterministic ? (rows <= 8 ? rows_kernel<8, true> : rows_kernel<16, true>)
                                       : (rows <= 8 ? rows_kernel<8, false> : rows_kernel<16, false>);
  launch_on_all(at, kernel, kThreads, kStages * kStage + kRoom + 1024, Program{device, n, memory, plan});
}

}  // namespace mr::cuda
