// Products and attentions of up to 16 rows, each the next of its sequence, in one kernel that fills the GPU, as one_row.cu has them of one
// row: a block on every multiprocessor runs the whole program, one warp asks for the weights, keys and values of all steps in turn, as
// far ahead as a ring has room, and blocks meet after every step. Another warp asks for x, as soon as everybody has finished the step
// before, through a ring of its own. Reads every weight, key and value once, and x from the L2 cache once a pass of each block.
//
// A stage of the ring is some boxes of eight weight rows by some chunks of 64 inputs, swizzled for Hopper's matrix instruction, or four
// tiles of 16 keys and values. Each of the two groups of four warps multiplies 64 of a pass's rows, or half of the inputs of all, and
// all eight finish the outputs, which lie in shared memory then.
#include "backend/cuda/chain/attend.cuh"
#include "backend/cuda/chain/rows.h"
#include "backend/cuda/device/tensor_map.cuh"
#include "backend/cuda/device/wgmma.cuh"
#include "backend/cuda/gemm/norm_factors.cuh"
#include "backend/cuda/rows/half_norm.cuh"

namespace mr::cuda {

namespace {

constexpr int kChunk = 64, kBox = 8 * kChunk * 2;             // inputs; bytes of a box of one chunk
constexpr int kStageBoxes = 32, kStage = kStageBoxes * kBox;  // of one chunk each
constexpr int kMostBoxes = 16, kMostChunks = 8;               // of a pass; of a stage
constexpr int kStages = 5, kRoom = 3 * 2 * kMostChunks * kBox;
constexpr int kThreads = 32 * (kWarps + 3);
constexpr int kParts = 2;  // of attentions that are at hand
static_assert(kStage >= kTiles * 2 * kTile * 128 * 2);

struct Program {
  const RowsStep* step;
  int n;
  ChainMemory memory;
  DecodePlan plan;
};

struct Shared {
  RowsWork work[kSteps];
  uint64_t step_full[kSteps], step_empty[kSteps];
  uint64_t full[kStages], empty[kStages];
  uint64_t x_full[2 * 3], x_empty[2 * 3];
  uint64_t go, factors;  // a step's inputs are there; the factors of its norm
  float factor[kChainRows];
  Part part[kParts];
  uint64_t part_full[kParts], part_empty[kParts];
  Softmaxes softmaxes;
};

// The ring of x for N rows; a stage is as long as the step's chunks. A pass's sums lie at the end of its room: x of a product of several
// passes does not reach so far, and of one pass it has been read by then.
template <int N>
struct XRing {
  static constexpr int stages = kRoom / (N / 8 * kMostChunks * kBox);
  __device__ static int stage(int chunks) { return N / 8 * chunks * kBox; }
};
constexpr int kSums = 2 * kChainRows * 68 * 4, kSumsAt = kRoom - kSums;

__device__ void fence_copies() { asm volatile("fence.proxy.async;" ::: "memory"); }  // between what threads and copies read and write

struct Units {  // of eight outputs
  int begin, end, per;
};
__device__ Units units_of(const RowsWork& work, int step) {
  const Product& p = work.step.product;
  const int n = int(p.gated ? p.out / 16 : p.out / 8), rank = rank_at(step);
  return {int(int64_t(rank) * n / gridDim.x), int(int64_t(rank + 1) * n / gridDim.x), p.gated ? work.boxes / 2 : work.boxes};
}

__device__ inline Part part_of(const AttendCall& call, const DecodePlan& plan, int unit) {
  const Pages& pages = call.pages;
  const DecodeItem& item = plan.item[unit / pages.kv_heads];
  Part p{item.seq, item.row, item.context, item.begin, item.end, item.index, item.count, item.slot, unit % pages.kv_heads};
  if (p.count == 0) return p;
  p.table = pages.group < 5 ? item.table[pages.group] : pages.begin[p.seq];
  if (call.window) p.begin = max(p.begin, p.context + 1 - call.window);
  p.first_tile = p.begin / kTile;
  p.n_tiles = p.begin < p.end ? (p.end - 1) / kTile + 1 - p.first_tile : 0;
  p.newest = p.end == p.context + 1;
  if (p.newest) p.stored = place_of(pages, p.table, p.kv_head, p.context);
  return p;
}

// Fetches a product's weights.
__device__ void fetch(Shared& shared, uint32_t ring, const CUtensorMap& map, const RowsWork& work, int step, Fetching& fetching) {
  const Product& p = work.step.product;
  const Units mine = units_of(work, step);
  const int lane = threadIdx.x % 32, n_chunks = int(p.in / kChunk), chunks = work.chunks, half = int(p.out / 2);
  const bool gated = p.gated;
  for (int pass = 0; pass < work.passes; pass++) {
    const int first = mine.begin + pass * mine.per, boxes = max(0, min(mine.per, mine.end - first)) * (gated ? 2 : 1);
    const int row = gated ? lane % 2 * half + (first + lane / 2) * 8 : (first + lane) * 8;
#pragma unroll 1
    for (int chunk = 0; chunk < n_chunks; chunk += chunks, fetching.turn.next(kStages)) {
      fetching.begin(shared.full, shared.empty, kStages, boxes * chunks * kBox);
      if (lane < boxes)
        copy_box(ring + fetching.turn.at * kStage + lane * chunks * kBox, map, 0, row, chunk, &shared.full[fetching.turn.at], kReadOnce);
    }
  }
}

// Fetches the keys and values of the block's parts, and says which these are.
__device__ void fetch(Shared& shared, uint32_t ring, const Program& program, const AttendCall& call, int step, Turn& part_turn,
                      Fetching& fetching) {
  const int n = program.plan.grid * call.pages.kv_heads;
  for (int unit = rank_at(step); unit < n; unit += int(gridDim.x), part_turn.next(kParts)) {
    const Part part = part_of(call, program.plan, unit);
    barrier_wait(&shared.part_empty[part_turn.at], part_turn.parity ^ 1);
    if (threadIdx.x % 32 == 0) {
      shared.part[part_turn.at] = part;
      barrier_arrive(&shared.part_full[part_turn.at]);
    }
    fetch_part(ring, kStage, kStages, shared.full, shared.empty, call, part, fetching);
  }
}

// Fetches x, once it is there.
template <int N>
__device__ void fetch_x(Shared& shared, uint32_t ring, const CUtensorMap& map, const RowsWork& work, Turn& turn) {
  using X = XRing<N>;
  const int lane = threadIdx.x % 32, n_chunks = int(work.step.product.in / kChunk), chunks = work.chunks;
  for (int pass = 0; pass < work.passes; pass++)
#pragma unroll 1
    for (int chunk = 0; chunk < n_chunks; chunk += chunks, turn.next(X::stages)) {
      barrier_wait(&shared.x_empty[turn.at], turn.parity ^ 1);
      if (lane == 0) barrier_expect(&shared.x_full[turn.at], N / 8 * chunks * kBox);
      __syncwarp();
      if (lane < N / 8)
        copy_box(ring + turn.at * X::stage(chunks) + lane * chunks * kBox, map, 0, lane * 8, chunk, &shared.x_full[turn.at], kReadAgain);
    }
}

// Boxes of eight rows follow each other, each of all chunks of a stage. The loop's bounds are the same for all lanes, and are said to
// be, or the compiler would let every matrix instruction wait for the one before.
__device__ uint64_t boxes_descriptor(uint32_t address, int chunks) {
  return uint64_t((address & 0x3ffff) >> 4) | uint64_t(1) << 16 | uint64_t(chunks * kBox >> 4) << 32 | uint64_t(1) << 62;
}

// One pass of a product: a thread's sums d. Of more than 64 rows each group of warps has half, else half of the inputs.
template <int N>
__device__ void multiply(Shared& shared, uint32_t ring, uint32_t x_ring, const RowsWork& work, bool halves, float (&d)[N / 2], Turn& turn,
                         Turn& x_turn) {
  using X = XRing<N>;
  const int group = __shfl_sync(~0u, threadIdx.x / 128, 0), lane = threadIdx.x % 32;
  const int chunks = __shfl_sync(~0u, work.chunks, 0), n_chunks = __shfl_sync(~0u, int(work.step.product.in / kChunk), 0);
  const int first = halves ? group : 0, step = halves ? 2 : 1, rows = halves ? 0 : group * 8 * chunks * kBox;
#pragma unroll 1
  for (int chunk = 0; chunk < n_chunks; chunk += chunks, turn.next(kStages), x_turn.next(X::stages)) {
    barrier_wait(&shared.full[turn.at], turn.parity);
    barrier_wait(&shared.x_full[x_turn.at], x_turn.parity);
    uint64_t a = boxes_descriptor(ring + turn.at * kStage + rows + first * kBox, chunks);
    uint64_t b = boxes_descriptor(x_ring + x_turn.at * X::stage(chunks) + first * kBox, chunks);
    settle(d);
    wgmma_begin();
#pragma unroll 1
    for (int j = first; j < chunks; j += step, a += step * kBox >> 4, b += step * kBox >> 4) {
#pragma unroll
      for (int k = 0; k < kChunk / 16; k++) wgmma(d, a + k * 2, b + k * 2, 1);
    }
    wgmma_commit();
    wgmma_wait<0>();
    settle(d);
    if (lane == 0) {
      barrier_arrive(&shared.empty[turn.at]);
      barrier_arrive(&shared.x_empty[x_turn.at]);
    }
  }
}

// What all threads have of a pass, to shared memory: [N][pitch] sums of its rows; of halves twice, one after the other.
struct PassSums {
  float* data;
  bool halves;
  __device__ int pitch() const { return halves ? 68 : 132; }  // so that banks differ
  template <int N>
  __device__ void leave(const float (&d)[N]) {
    const int group = threadIdx.x / 128, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    float* to = data + (halves ? group * 2 * N * pitch() : group * 64) + threadIdx.x / 32 % 4 * 16 + g + 2 * t * pitch();
    workers_meet();  // nobody reads what was there
#pragma unroll
    for (int e = 0; e < N; e++) to[(e / 4 * 8 + e % 2) * pitch() + (e & 2 ? 8 : 0)] = d[e];
    workers_meet();
  }
  template <int N>
  __device__ float at(int row, int place) const {
    const float* from = data + row * pitch() + place;
    return halves ? from[0] + from[N * pitch()] : from[0];
  }
};

// The outputs of a pass, from sums: a warp has rows `warp` and warp + 8 of x, a lane every 32nd output.
struct Finish {
  const Product& p;
  int first, n;  // outputs of the pass
  float residual[2] = {}, squares[2] = {}, bias, weight;

  __device__ void ask() {  // what the first 32 outputs need
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int h = 0; h < 2; h++) residual[h] = residual_at(lane, threadIdx.x / 32 + 8 * h);
    bias = bias_at(lane);
    weight = weight_at(lane);
  }
  __device__ float bias_at(int o) const { return o < n && p.bias ? p.bias[first + o] : 0.0f; }
  __device__ float weight_at(int o) const { return o < n && p.next.x && p.next.weight ? p.next.weight[first + o] : 0.0f; }
  __device__ float residual_at(int o, int row) const {
    return p.residual && o < n && row < int(p.x.rows) ? __ldcg(p.residual + row * p.residual_stride + first + o) : 0.0f;
  }
  template <int N>
  __device__ void finish(const PassSums& sums, const float* factor) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll 1
    for (int o = lane; o < n; o += 32) {
      const int at = first + o, place = p.gated ? o / 8 * 16 + o % 8 : o;
      if (o >= 32) {
        bias = bias_at(o);
        weight = weight_at(o);
      }
#pragma unroll
      for (int h = 0; h < N / 8; h++) {
        const int row = warp + 8 * h;
        if (row >= int(p.x.rows)) break;
        const float by = p.squares ? factor[row] : 1.0f, sum = sums.at<N>(row, place) * by;
        float y = (sum + bias) * p.scale;
        if (p.gated) y = activated(p.activation, sum) * (sums.at<N>(row, place + 8) * by);
        if (p.residual) y += o < 32 ? residual[h] : residual_at(o, row);
        store(p.y.data, p.y.dtype, row * p.y.stride + at, y);
        if (p.next.x) put_half(p.next, row * p.out + at, y, weight);
        squares[h] += y * y;
      }
    }
  }
  // The block's part of every row's squares.
  __device__ void write_squares() {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const int row = threadIdx.x / 32 + 8 * h;
      const float sum = warp_sum(squares[h]);
      if (row < int(p.x.rows) && threadIdx.x % 32 == 0) put_squares(p.next, row, int(blockIdx.x), int(gridDim.x), sum);
    }
  }
};

template <int N>
__device__ void run_product(Shared& shared, uint32_t ring, char* room, const RowsWork& work, int step, const Units& mine, Turn& turn,
                            Turn& x_turn) {
  const Product& p = work.step.product;
  PassSums sums{reinterpret_cast<float*>(room + kSumsAt), __shfl_sync(~0u, work.boxes, 0) <= 8};  // one pass, if they are
  Finish outputs{p};
  for (int pass = 0; pass < work.passes; pass++) {
    const int first = mine.begin + pass * mine.per;
    outputs.first = first * 8;
    outputs.n = max(0, min(mine.per, mine.end - first)) * 8;
    outputs.ask();
    float d[N / 2] = {};
    multiply<N>(shared, ring, shared_address(room), work, sums.halves, d, turn, x_turn);
    sums.leave(d);
    barrier_wait(&shared.factors, step & 1);
    outputs.finish<N>(sums, shared.factor);
  }
  if (p.next.x) outputs.write_squares();
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

// The warp that fetches weights, keys and values.
__device__ void ask(const Program& program, Shared& shared, uint32_t ring) {
  const int lane = threadIdx.x % 32;
  Fetching fetching;
  Turn part_turn;
  auto ask_step = [&](int i) {
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
  for (int i = 0; i <= kStepsAhead; i++) ask_step(i);
  for (int i = 0; i < program.n; i++) {
    const int at = i % kSteps;
    barrier_wait(&shared.step_full[at], i / kSteps & 1);
    const RowsWork& work = shared.work[at];
    if (work.step.attends()) {
      wait_before();  // keys of earlier steps
      fetch(shared, ring, program, work.step.attend, i, part_turn, fetching);
    } else {
      fetch(shared, ring, program.step[i].weight, work, i, fetching);
    }
    __syncwarp();
    ask_step(i + 1 + kStepsAhead);
  }
}

// The warp that knows when everybody has finished a step, and fetches x.
template <int N>
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
    if (!shared.work[at].step.attends()) fetch_x<N>(shared, x_ring, program.step[i].x, shared.work[at], turn);
    __syncwarp();
    if (lane == 0) barrier_arrive(&shared.step_empty[at]);
  }
}

// The block's parts of an attention.
__device__ void attend_parts(const Program& program, Shared& shared, char* ring, const AttendCall& call, int step, Turn& turn,
                             Turn& part_turn) {
  const int lane = threadIdx.x % 32;
  char* room = ring + kStages * kStage;
  const int n = program.plan.grid * call.pages.kv_heads;
  for (int unit = rank_at(step); unit < n; unit += int(gridDim.x), part_turn.next(kParts)) {
    barrier_wait(&shared.part_full[part_turn.at], part_turn.parity);
    const Part& part = shared.part[part_turn.at];
    auto stages = [&](auto f) {
      for (int s = 0; s * kTiles < part.n_tiles; s++, turn.next(kStages)) {
        barrier_wait(&shared.full[turn.at], turn.parity);
        f(s, ring + turn.at * kStage);
        __syncwarp();
        if (lane == 0) barrier_arrive(&shared.empty[turn.at]);
      }
    };
    workers_meet();  // nobody reads what the part before left
    if (part.count > 0 && call.pages.k_dim == 128) {
      attend_part(shared.softmaxes, *reinterpret_cast<Mixing<128>*>(room), call, program.plan, part, stages);
    } else if (part.count > 0) {
      attend_part(shared.softmaxes, *reinterpret_cast<Mixing<64>*>(room), call, program.plan, part, stages);
    }
    __syncwarp();
    if (lane == 0) barrier_arrive(&shared.part_empty[part_turn.at]);
  }
}

template <int N>
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
      attend_parts(program, shared, ring, work.step.attend, i, turn, part_turn);
    } else {
      run_product<N>(shared, base, room, work, i, mine, turn, x_turn);
    }
    barrier_wait(&shared.factors, i & 1);  // whoever makes them has seen this step
    fence_copies();
    workers_meet();
    if (threadIdx.x == 0) asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(arrived) : "memory");
    if (lane == 0) barrier_arrive(&shared.step_empty[at]);
  }
  if (threadIdx.x > 0) return;
  unsigned before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(arrived + 1) : "memory");
  if (before == gridDim.x - 1) arrived[0] = arrived[1] = 0;  // all have seen the end
}

template <int N>
__global__ void __launch_bounds__(kThreads, 1) rows_kernel(const Program program) {
  extern __shared__ char raw[];
  char* ring = raw + (-shared_address(raw) & 1023u);
  __shared__ __align__(16) char shared_room[sizeof(Shared)];  // nothing of it is initialized
  Shared& shared = *reinterpret_cast<Shared*>(shared_room);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) begin(shared);
  __syncthreads();
  launch_next();
  if (warp < kWarps) {
    work<N>(program, shared, ring);
  } else if (warp == kWarps) {
    ask(program, shared, shared_address(ring));
  } else if (warp == kWarps + 1) {
    lead<N>(program, shared, shared_address(ring) + kStages * kStage);
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

}  // namespace

bool can_chain_rows(const Launch& at, const ChainStep& s) {
  if (at.deterministic) return false;
  const Pages& pages = s.attend.pages;
  if (s.attends())
    return s.attend.q.rows <= kChainRows && s.attend.k.data && pages.k_dim <= 128 && s.attend.heads <= kGroup * pages.kv_heads &&
           can_decode(s.attend);
  const Product& p = s.product;
  return p.x.rows <= kChainRows && p.conv.n == 0 && p.in % kChunk == 0 && p.out % (p.gated ? 16 : 8) == 0;
}

RowsStep rows_step(const Launch& at, const ChainStep& s) {
  RowsStep r{{}, {}, {s}};
  if (s.attends()) return r;
  const Product& p = s.product;
  const int64_t each = p.gated ? 2 : 1, boxes = div_up(p.out / (8 * each), at.n_sm) * each, n_chunks = p.in / kChunk;
  r.work.passes = int(div_up(boxes, kMostBoxes));
  r.work.boxes = int(div_up(boxes / each, r.work.passes) * each);
  r.work.chunks = int(std::min<int64_t>({kMostChunks, kStageBoxes / r.work.boxes, n_chunks}));
  r.weight = tensor_map(p.weight, {kChunk, p.out, n_chunks}, {p.in * 2, kChunk * 2}, {kChunk, 8, r.work.chunks});
  r.x = tensor_map(p.x.data, {kChunk, p.x.rows, n_chunks}, {p.x.stride * 2, kChunk * 2}, {kChunk, 8, r.work.chunks});
  return r;
}

void chain_rows(const Launch& at, const RowsStep* device, int n, int rows, const ChainMemory& memory, const DecodePlan& plan) {
  const auto kernel = rows <= 8 ? rows_kernel<8> : rows_kernel<16>;
  launch_together(at, kernel, kThreads, kStages * kStage + kRoom + 1024, Program{device, n, memory, plan});
}

}  // namespace mr::cuda
