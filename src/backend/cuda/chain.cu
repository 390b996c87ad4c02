// Products and attentions of one row, one after the other in one kernel that fills the GPU: a block on every multiprocessor runs the
// whole program. One warp of a block asks for the weights, keys and values of all steps in turn, as far ahead as a ring in shared
// memory has room, whatever the sums before them are; others multiply, and one finishes outputs. Blocks meet after every step, and
// while they do, what the ring waits for keeps memory busy. Reads every weight and every key and value once.
//
// A stage of the ring is 16 rows of a weight (gated: 8 of each half) by kPiece inputs, or four tiles of 16 keys and values. In each
// stage every multiplying warp takes its own kPiece / kWarps inputs; their order inside 32 is permuted alike in weight and x, so that
// lane 4 g + t holds 8 t .. 8 t + 7 of row g.
#include "backend/cuda/attend_warp.cuh"
#include "backend/cuda/chain.h"
#include "backend/cuda/copies.cuh"

namespace mr::cuda {

namespace {

constexpr int kWarps = 8;     // that multiply
constexpr int kPiece = 1024;  // inputs of a stage
constexpr int kShare = kPiece / kWarps;
constexpr int kRows = 16;                                                            // of a stage: even ones, then odd ones in other banks
constexpr int kOdd = kRows / 2 * kPiece * 2 + 64, kStage = kRows * kPiece * 2 + 64;  // bytes
constexpr int kLeastStages = 4, kMostStages = 6, kSlots = 2;                         // kSlots: tiles whose sums wait to be finished
constexpr int kTiles = 4;                                                            // of keys and values in a stage
constexpr int kThreads = 32 * (kWarps + 2), kWorkers = 32 * kWarps;
constexpr int kMostShared = 227 << 10;
constexpr int kInFlight = 2;  // measured: 1 reads at 3.0 TB/s, 2 at 4.2, 3 to 6 at 3.8 to 4.0
static_assert(kStage >= kTiles * 2 * kTile * 128 * 2 && kInFlight <= kLeastStages);

constexpr int kSteps = 8, kStepsAhead = 5;  // steps that are at hand; of these, at most so many that nobody has begun

__device__ int row_at(int row) { return row % 2 * kOdd + row / 2 * kPiece * 2; }  // in a stage

struct Program {
  const ChainStep* step;
  int n, stages;
  ChainMemory memory;
};

// A block's share of a step. Of a product: outputs [begin, end), `per` in a tile of rows. Of an attention: n_tiles tiles of 16 tokens
// of one K/V head, from first_tile on, the index-th of `count` such shares, with token `begin` the first that is seen; count 0: none.
struct Share {
  int begin, end, per;
  int kv_head, index, count, first_tile, n_tiles, context;
  int64_t newest;  // in the pages: where the K/V head's page of this step's token begins, counted in values, if that is in the share
};

struct Shared {
  ChainStep step[kSteps];
  Share share[kSteps];
  uint64_t step_full[kSteps], step_empty[kSteps], share_full[kSteps];
  uint64_t full[kMostStages], empty[kMostStages];
  uint64_t sums_full[kSlots], sums_empty[kSlots];
  uint64_t go, attended;  // a step's inputs are there; an attention is done
  float sums[kSlots][kWarps][kRows];
  float m[kWarps][kGroup], l[kWarps][kGroup];
  int last;
};

// Where a walk through a ring of barriers is.
struct Turn {
  int at = 0, parity = 0;
  __device__ void next(int size) {
    if (++at == size) at = 0, parity ^= 1;
  }
};

__device__ unsigned peek(const unsigned* p) {
  unsigned v;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
__device__ void workers_meet() { asm volatile("bar.sync 1, %0;" ::"n"(kWorkers) : "memory"); }

// Steps begin at another block each, so that no block always has the larger share.
__device__ int rank_at(int step) { return int((blockIdx.x + unsigned(step) * 37) % gridDim.x); }

__device__ Share share_of(const Product& p, int step) {
  const int64_t n = p.gated ? p.out / 2 : p.out, rank = rank_at(step);
  Share s{};
  s.begin = int(rank * n / gridDim.x), s.end = int((rank + 1) * n / gridDim.x), s.per = p.gated ? kRows / 2 : kRows;
  return s;
}
__device__ Share share_of(const AttendCall& c, int step) {
  const int kv_heads = c.pages.kv_heads, rank = rank_at(step), context = *c.spots.context;
  Share s{};
  s.begin = c.window ? max(0, context + 1 - c.window) : 0, s.context = context;
  const int first = s.begin / kTile, tiles = context / kTile + 1 - first, most = int(gridDim.x) / kv_heads;
  const int parts = min(most, (tiles + kTiles - 1) / kTiles), per = (tiles + parts - 1) / parts, n = (tiles + per - 1) / per;
  s.kv_head = rank % kv_heads, s.index = rank / kv_heads;
  if (s.index < n) s.count = n, s.first_tile = first + s.index * per, s.n_tiles = min(per, tiles - s.index * per);
  return s;
}

__device__ int64_t newest_of(const Pages& pages, const Share& s) {
  const int page = page_number(pages, s.context), in_page = s.context - page * pages.page_tokens;
  return pages.unit[*pages.begin + page] * (pages.unit_bytes / 2) + (int64_t(s.kv_head) * pages.page_tokens + in_page) * pages.k_dim;
}

// Where the asking is. Of all stages that have room, only kInFlight are asked for before the first of these has come: that is
// enough to keep memory busy, and more would stand in the way of what blocks tell each other.
struct Asking {
  Turn turn, first;
  int n = 0;
  // The next stage, of so many bytes.
  __device__ void begin(Shared& shared, int stages, int bytes) {
    barrier_wait(&shared.empty[turn.at], turn.parity ^ 1);
    if (n == kInFlight) {
      barrier_wait(&shared.full[first.at], first.parity);
      first.next(stages);
    } else {
      n++;
    }
    if (threadIdx.x % 32 == 0) barrier_expect(&shared.full[turn.at], bytes);
    __syncwarp();
  }
};

// Asks for a product's weights.
__device__ void fetch(const Program& program, Shared& shared, uint32_t ring, const Product& p, const Share& mine, Asking& asking) {
  const int lane = threadIdx.x % 32, in = int(p.in);
  const bool gated = p.gated;
  const bf16* weight = static_cast<const bf16*>(p.weight);
  const int64_t half = p.out / 2;
  Turn& turn = asking.turn;
  for (int tile = mine.begin; tile < mine.end; tile += mine.per) {
    const int output = tile + lane % mine.per, rows = min(mine.per, mine.end - tile) * (gated ? 2 : 1);
    const bool valid = lane < kRows && output < mine.end;
    const bf16* row = weight + (gated && lane >= mine.per ? half + output : output) * in;
#pragma unroll 1
    for (int k = 0; k < in; k += kPiece, turn.next(program.stages)) {
      const int bytes = min(kPiece, in - k) * 2;
      asking.begin(shared, program.stages, rows * bytes);
      if (valid) copy_bytes(ring + turn.at * kStage + row_at(lane), row + k, bytes, &shared.full[turn.at], kReadOnce);
    }
  }
}

// Asks for keys and values, those of this step among them, which are replaced when they have come.
__device__ void fetch(const Program& program, Shared& shared, uint32_t ring, const AttendCall& call, const Share& mine, Asking& asking) {
  Turn& turn = asking.turn;
  const int lane = threadIdx.x % 32, bytes = kTile * call.pages.k_dim * 2;
  const Pages pages = call.pages;
  const int32_t* table = pages.unit + *pages.begin;
  const std::byte* base =
      pages.base + (int64_t(mine.kv_head) + (lane >= kTiles ? pages.kv_heads : 0)) * pages.page_tokens * pages.k_dim * 2;
  auto unit_of = [&](int tile) { return tile < mine.n_tiles ? table[page_number(pages, (mine.first_tile + tile) * kTile)] : 0; };
  int unit = unit_of(lane);
  for (int from = 0; from < mine.n_tiles; from += 32) {
    const int next = unit_of(from + 32 + lane);
    for (int tile = from; tile < min(from + 32, mine.n_tiles); tile += kTiles, turn.next(program.stages)) {
      const int n = min(kTiles, mine.n_tiles - tile), own = lane % kTiles, token = (mine.first_tile + tile + own) * kTile;
      const int64_t at = __shfl_sync(~0u, unit, tile - from + own);
      asking.begin(shared, program.stages, n * 2 * bytes);
      if (lane < 2 * kTiles && own < n)
        copy_bytes(ring + turn.at * kStage + (2 * own + lane / kTiles) * bytes,
                   base + at * pages.unit_bytes + int64_t(token - page_number(pages, token) * pages.page_tokens) * pages.k_dim * 2, bytes,
                   &shared.full[turn.at], kReadOnce);
    }
    unit = next;
  }
}

// Makes outputs of a product's sums.
__device__ void finish(Shared& shared, const Product& p, const Share& mine, Turn& turn) {
  const int lane = threadIdx.x % 32;
  float factor = 1, squares = 0;
  if (p.squares) {
    float of = 0;
    for (int j = lane; j < int(p.n_squares); j += 32) of += __ldcg(p.squares + j);
    factor = rsqrtf(warp_sum(of) / float(p.in) + p.eps);
  }
  for (int tile = mine.begin; tile < mine.end; tile += mine.per, turn.next(kSlots)) {
    const int at = tile + lane % mine.per;
    const bool valid = lane < mine.per && at < mine.end;
    float residual = 0, bias = 0, weight = 1;
    if (valid && p.residual) residual = __ldcg(p.residual + at);
    if (valid && p.bias) bias = p.bias[at];
    if (valid && p.next.x && p.next.weight) weight = p.next.offset + p.next.weight[at];
    barrier_wait(&shared.sums_full[turn.at], turn.parity);
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps / 2; w++) sum += shared.sums[turn.at][lane / 16 * (kWarps / 2) + w][lane % 16];
    __syncwarp();
    if (lane == 0) barrier_arrive(&shared.sums_empty[turn.at]);
    sum = (sum + __shfl_xor_sync(~0u, sum, 16)) * factor;
    if (p.gated) {
      const float value = __shfl_down_sync(~0u, sum, 8);
      if (valid) store(p.y.data, p.y.dtype, at, activated(p.activation, sum) * value);
    } else if (valid) {
      const float y = (sum + bias) * p.scale + residual;
      store(p.y.data, p.y.dtype, at, y);
      if (p.next.x) static_cast<bf16*>(p.next.x)[at] = __float2bfloat16(y * weight);
      squares += y * y;
    }
  }
  if (!p.next.x) return;
  squares = warp_sum(squares);
  for (int part = int(blockIdx.x) + lane * int(gridDim.x); part < p.next.parts; part += 32 * int(gridDim.x))
    p.next.squares[part] = lane == 0 ? squares : 0.0f;
}

// This warp's inputs of x, in whole pieces, for itself alone.
__device__ void take_x(bf16* to, const void* x, int in) {
  constexpr int lanes = kShare / 8, kAtOnce = 8;  // lanes that hold a share; pieces asked for at a time by each
  const int first = threadIdx.x % 32 / lanes * kPiece + threadIdx.x / 32 * kShare + threadIdx.x % lanes * 8;
#pragma unroll 1
  for (int from = first; from / kPiece * kPiece < in; from += 32 / lanes * kPiece * kAtOnce) {
    uint4 v[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; i++) {
      const int k = from + i * (32 / lanes) * kPiece;
      v[i] = k < in ? __ldcg(reinterpret_cast<const uint4*>(static_cast<const bf16*>(x) + k)) : uint4{};
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; i++) {
      const int k = from + i * (32 / lanes) * kPiece;
      if (k / kPiece * kPiece < in) *reinterpret_cast<uint4*>(to + k) = v[i];
    }
  }
  __syncwarp();
}

__device__ void multiply(const Program& program, Shared& shared, const char* ring, bf16* x, const Product& p, const Share& mine, Turn& turn,
                         Turn& slot) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, in = int(p.in);
  if (mine.begin < mine.end) take_x(x, p.x.data, in);
  const int first = warp * kShare + 8 * t;
  for (int tile = mine.begin; tile < mine.end; tile += mine.per, slot.next(kSlots)) {
    float sum[4] = {};
    for (int k = 0; k < in; k += kPiece, turn.next(program.stages)) {
      barrier_wait(&shared.full[turn.at], turn.parity);
      const char* rows = ring + turn.at * kStage + first * 2;
#pragma unroll
      for (int j = 0; j < kShare; j += 32) {
        uint4 a = *reinterpret_cast<const uint4*>(rows + row_at(g) + j * 2);
        uint4 b = *reinterpret_cast<const uint4*>(rows + row_at(g + 8) + j * 2);
        const uint4 v = *reinterpret_cast<const uint4*>(x + k + first + j);
        if (k + first + j >= in) a = b = uint4{};  // whatever lies there
        mma(sum, a.x, b.x, a.y, b.y, v.x, v.y);
        mma(sum, a.z, b.z, a.w, b.w, v.z, v.w);
      }
      __syncwarp();
      if (lane == 0) barrier_arrive(&shared.empty[turn.at]);
    }
    barrier_wait(&shared.sums_empty[slot.at], slot.parity ^ 1);
    if (t == 0) shared.sums[slot.at][warp][g] = sum[0], shared.sums[slot.at][warp][g + 8] = sum[2];
    __syncwarp();
    if (lane == 0) barrier_arrive(&shared.sums_full[slot.at]);
  }
}

// [D] sums of a head, the largest score, the sum of weights.
template <int D>
constexpr int kPart = D + kPartExtra;

// What the warps of an attention share.
template <int D>
struct Mixing {
  uint4 turned[kGroup + 2][D / 8];  // the query heads of a group, rotated; behind them the new key, and the new value
  // What warp w found of head h; [kWarps][heads of a group] of them lie behind this.
  __device__ float* found(int w, int group, int h) { return reinterpret_cast<float*>(this + 1) + (w * group + h) * kPart<D>; }
};

// Rotates the queries of a group, and the new key where it is in the share, which lies in shared memory then with its value.
template <int D>
__device__ void turn_heads(uint4 (&turned)[kGroup + 2][D / 8], const AttendCall& call, const Share& mine, int group, bool newest) {
  const bf16* q = static_cast<const bf16*>(call.q.data) + mine.kv_head * group * call.q.head_stride;
  const bf16* k = static_cast<const bf16*>(call.k.data) + mine.kv_head * call.k.head_stride;
  const bf16* v = static_cast<const bf16*>(call.v.data) + mine.kv_head * call.v.head_stride;
  auto value = [](const bf16* p) { return low(__ldcg(reinterpret_cast<const uint16_t*>(p))); };
#pragma unroll 2
  for (int p = threadIdx.x; p < (group + newest) * (D / 2); p += kWorkers) {
    const int row = p / (D / 2), i = p % (D / 2);
    const bf16* from = row < group ? q + row * call.q.head_stride : k;
    const float a = value(from + i), b = value(from + i + D / 2);
    float c = 1, s = 0;
    if (call.rope.angles) c = call.rope.angles[i], s = call.rope.angles[i + D / 2];
    bf16* to = reinterpret_cast<bf16*>(turned[row < group ? row : kGroup]);
    to[i] = __float2bfloat16(a * c - b * s), to[i + D / 2] = __float2bfloat16(b * c + a * s);
  }
  if (newest && threadIdx.x < D / 8) turned[kGroup + 1][threadIdx.x] = __ldcg(reinterpret_cast<const uint4*>(v) + threadIdx.x);
}

// Two neighbouring values that the warps of a block, or blocks, have found of a head, and their weights: the largest score, the sum.
struct Found {
  float most = -INFINITY, total = 0, x = 0, y = 0;
};
// n of them, at_once asked for at a time, first to last.
template <int kAtOnce, class Weight, class Values>
__device__ Found merged(int n, Weight weight, Values values) {
  Found f;
#pragma unroll 1
  for (int from = 0; from < n; from += kAtOnce) {
    float2 ml[kAtOnce], o[kAtOnce];
    float top = f.most;
#pragma unroll
    for (int j = 0; j < kAtOnce; j++) {
      ml[j] = make_float2(-INFINITY, 0), o[j] = make_float2(0, 0);
      if (from + j < n) ml[j] = weight(from + j), o[j] = values(from + j);
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; j++) top = fmaxf(top, ml[j].x);
    const float shrink = exp2_fast(f.most - top);
    f.total *= shrink, f.x *= shrink, f.y *= shrink, f.most = top;
#pragma unroll
    for (int j = 0; j < kAtOnce; j++) {
      const float w = exp2_fast(ml[j].x - top);
      f.total += w * ml[j].y, f.x += w * o[j].x, f.y += w * o[j].y;
    }
  }
  return f;
}

template <int D>
__device__ void attend(const Program& program, Shared& shared, char* ring, Mixing<D>& room, const AttendCall& call, const Share& mine,
                       Turn& turn) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int group = call.heads / call.pages.kv_heads, context = mine.context, kv_head = mine.kv_head;
  const int last_tile = mine.n_tiles - 1;
  const bool newest = mine.first_tile + last_tile == context / kTile;
  auto& turned = room.turned;
  turn_heads<D>(turned, call, mine, group, newest);
  workers_meet();

  constexpr int kTeams = kWarps / kTiles;  // each takes whole stages in turn
  const int n_stages = (mine.n_tiles + kTiles - 1) / kTiles;
  uint4 q[D / 32] = {};
  if (g < group) {
#pragma unroll
    for (int c = 0; c < D / 32; c++) q[c] = turned[g][4 * c + t];
  }
  Sums<D> sums;
#pragma unroll 1
  for (int s = 0; s < n_stages; s++, turn.next(program.stages)) {
    barrier_wait(&shared.full[turn.at], turn.parity);
    const int tile = s * kTiles + warp % kTiles, at = (mine.first_tile + tile) * kTile;
    if (s % kTeams == warp / kTiles && tile < mine.n_tiles) {
      auto& stage = reinterpret_cast<bf16(*)[2][kTile * D]>(ring + turn.at * kStage)[warp % kTiles];
      if (newest && tile == last_tile) {  // the lower lanes have the key's, the upper ones the value's 8 dimensions each
        const int part = lane / 16, i = lane % 16, kv_heads = call.pages.kv_heads, page_tokens = call.pages.page_tokens;
        if (i < D / 8) {
          const uint4 x = turned[kGroup + part][i];
          bf16* page = reinterpret_cast<bf16*>(call.pages.base) + mine.newest + int64_t(part) * kv_heads * page_tokens * D;
          *reinterpret_cast<uint4*>(&stage[part][(context - at) * D + i * 8]) = x;
          *reinterpret_cast<uint4*>(page + i * 8) = x;
        }
        __syncwarp();
      }
      Tile<D> keys;
      keys.load(stage, mine.begin - at, context + 1 - at, g, t);
      sums.take(keys, q, call, mine.begin - at, context + 1 - at, t);
    }
    __syncwarp();
    if (lane == 0) barrier_arrive(&shared.empty[turn.at]);
  }

  sums.l += __shfl_xor_sync(~0u, sums.l, 1);
  sums.l += __shfl_xor_sync(~0u, sums.l, 2);
  if (t == 0) shared.m[warp][g] = sums.m, shared.l[warp][g] = sums.l;
  if (g < group && sums.m > -INFINITY) {
    float* to = room.found(warp, group, g);
#pragma unroll
    for (int h = 0; h < D / 64; h++)
#pragma unroll
      for (int k = 0; k < 2; k++) {
        float4* at = reinterpret_cast<float4*>(to + 64 * h + 8 * (2 * t + k));
        at[0] = make_float4(sums.o[h][0][k], sums.o[h][1][k], sums.o[h][2][k], sums.o[h][3][k]);
        at[1] = make_float4(sums.o[h][4][k], sums.o[h][5][k], sums.o[h][6][k], sums.o[h][7][k]);
      }
  }
  workers_meet();
  // The warps' parts become the block's.
  const int64_t step = int64_t(call.pages.kv_heads) * kGroup * kPart<D>;
  float* parts = program.memory.partial + kv_head * kGroup * kPart<D>;
  const int busy = min(mine.n_tiles, kWarps);
  for (int i = threadIdx.x; i < group * D / 2; i += kWorkers) {
    const int head = i / (D / 2), d = i % (D / 2) * 2;
    const Found f = merged<kWarps>(
        busy, [&](int w) { return make_float2(shared.m[w][head], shared.l[w][head]); },
        [&](int w) { return *reinterpret_cast<const float2*>(room.found(w, group, head) + d); });
    float* to = parts + mine.index * step + head * kPart<D>;
    *reinterpret_cast<float2*>(to + d) = make_float2(f.x, f.y);
    if (d == 0) *reinterpret_cast<float2*>(to + D) = make_float2(f.most, f.total);
  }
  // Whoever comes last merges the parts of all blocks.
  workers_meet();
  if (threadIdx.x == 0) {
    unsigned *arrived = program.memory.arrived + 2 + kv_head, before;  // publishes this part, and shows those that came before
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(arrived) : "memory");
    shared.last = int(before) == mine.count - 1;
    if (shared.last) *arrived = 0;
  }
  workers_meet();
  if (!shared.last) return;
  for (int i = threadIdx.x; i < group * D / 2; i += kWorkers) {
    const int head = i / (D / 2), d = i % (D / 2) * 2;
    const float* part = parts + head * kPart<D>;
    Found f = merged<16>(
        mine.count, [&](int j) { return __ldcg(reinterpret_cast<const float2*>(part + j * step + D)); },
        [&](int j) { return __ldcg(reinterpret_cast<const float2*>(part + j * step + d)); });
    if (call.sinks) {
      const float sink = call.sinks[kv_head * group + head] * kLog2e, top = fmaxf(f.most, sink), shrink = exp2_fast(f.most - top);
      f.total = f.total * shrink + exp2_fast(sink - top), f.x *= shrink, f.y *= shrink;
    }
    const int64_t to = (kv_head * group + head) * call.out.head_stride + d;
    store(call.out.data, call.out.dtype, to, f.x / f.total), store(call.out.data, call.out.dtype, to + 1, f.y / f.total);
  }
}

__global__ void __launch_bounds__(kThreads, 1) chain_kernel(const Program program) {
  extern __shared__ __align__(128) char ring[];
  __shared__ __align__(16) char shared_room[sizeof(Shared)];  // nothing of it is initialized
  Shared& shared = *reinterpret_cast<Shared*>(shared_room);
  char* room = ring + program.stages * kStage;  // for x, or what the warps of an attention found
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    for (int s = 0; s < program.stages; s++) barrier_init(&shared.full[s], 1), barrier_init(&shared.empty[s], kWarps);
    for (int s = 0; s < kSlots; s++) barrier_init(&shared.sums_full[s], kWarps), barrier_init(&shared.sums_empty[s], 1);
    for (int s = 0; s < kSteps; s++)
      barrier_init(&shared.step_full[s], 1), barrier_init(&shared.share_full[s], 1), barrier_init(&shared.step_empty[s], kWarps + 1);
    barrier_init(&shared.go, 1), barrier_init(&shared.attended, kWarps);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  launch_next();
  if (warp == kWarps) {
    Asking asking;
    auto ask_step = [&](int i) {
      if (i >= program.n) return;
      barrier_wait(&shared.step_empty[i % kSteps], (i / kSteps & 1) ^ 1);
      if (lane > 0) return;
      barrier_expect(&shared.step_full[i % kSteps], sizeof(ChainStep));
      copy_bytes(shared_address(&shared.step[i % kSteps]), program.step + i, sizeof(ChainStep), &shared.step_full[i % kSteps], kReadAgain);
    };
    for (int i = 0; i <= kStepsAhead; i++) ask_step(i);
    for (int i = 0; i < program.n; i++) {
      const int at = i % kSteps;
      barrier_wait(&shared.step_full[at], i / kSteps & 1);
      const ChainStep& step = shared.step[at];
      if (step.attends) wait_before();  // keys of earlier steps
      Share share = step.attends ? share_of(step.attend, i) : share_of(step.product, i);
      if (share.count > 0) share.newest = newest_of(step.attend.pages, share);
      if (lane == 0) {
        shared.share[at] = share;
        barrier_arrive(&shared.share_full[at]);
      }
      if (step.attends) {
        fetch(program, shared, shared_address(ring), step.attend, share, asking);
      } else {
        fetch(program, shared, shared_address(ring), step.product, share, asking);
      }
      __syncwarp();
      ask_step(i + 1 + kStepsAhead);
    }
  } else if (warp == kWarps + 1) {
    wait_before();
    unsigned *arrived = program.memory.arrived, before;
    Turn slot;
    int attention = 0;
    for (int i = 0; i < program.n; i++) {
      const int at = i % kSteps;
      barrier_wait(&shared.step_full[at], i / kSteps & 1);
      barrier_wait(&shared.share_full[at], i / kSteps & 1);
      if (lane == 0) {
        while (peek(arrived) < unsigned(i) * gridDim.x) {
        }
        barrier_arrive(&shared.go);
      }
      __syncwarp();
      if (shared.step[at].attends) {
        barrier_wait(&shared.attended, attention++ & 1);
      } else {
        finish(shared, shared.step[at].product, shared.share[at], slot);
      }
      __syncwarp();
      if (lane == 0) {
        asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(arrived) : "memory");
        barrier_arrive(&shared.step_empty[at]);
      }
    }
    if (lane > 0) return;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(arrived + 1) : "memory");
    if (before == gridDim.x - 1) arrived[0] = arrived[1] = 0;  // all have seen the end
  } else {
    Turn turn, slot;
    for (int i = 0; i < program.n; i++) {
      const int at = i % kSteps;
      barrier_wait(&shared.step_full[at], i / kSteps & 1);
      barrier_wait(&shared.share_full[at], i / kSteps & 1);
      const ChainStep& step = shared.step[at];
      const Share& share = shared.share[at];
      barrier_wait(&shared.go, i & 1);
      if (!step.attends) {
        multiply(program, shared, ring, reinterpret_cast<bf16*>(room), step.product, share, turn, slot);
      } else if (share.count > 0 && step.attend.pages.k_dim == 128) {
        attend<128>(program, shared, ring, *reinterpret_cast<Mixing<128>*>(room), step.attend, share, turn);
      } else if (share.count > 0) {
        attend<64>(program, shared, ring, *reinterpret_cast<Mixing<64>*>(room), step.attend, share, turn);
      }
      __syncwarp();
      if (lane > 0) continue;
      if (step.attends) barrier_arrive(&shared.attended);
      barrier_arrive(&shared.step_empty[at]);
    }
  }
}

size_t room_of(const ChainStep& s) {
  if (!s.attends) return size_t(div_up(s.product.in, kPiece)) * kPiece * 2;
  const size_t heads = size_t(s.attend.heads / s.attend.pages.kv_heads);
  return s.attend.pages.k_dim == 128 ? sizeof(Mixing<128>) + kWarps * heads * kPart<128> * 4
                                     : sizeof(Mixing<64>) + kWarps * heads * kPart<64> * 4;
}
constexpr size_t kMostRoom = kMostShared - sizeof(Shared) - 64 - kLeastStages * kStage;

}  // namespace

bool can_chain(const Launch& at, const ChainStep& s) {
  const Pages& pages = s.attend.pages;
  if (s.attends && (pages.kv_heads > at.n_sm || s.attend.heads > kGroup * pages.kv_heads || pages.k_dim > 128 || !s.attend.k.data ||
                    !can_decode(s.attend)))
    return false;
  return (s.attends || s.product.conv.n == 0) && room_of(s) <= kMostRoom;
}

void chain(const Launch& at, const ChainStep* host, const ChainStep* device, int n, const ChainMemory& memory) {
  size_t room = 0;
  for (int i = 0; i < n; i++) room = std::max(room, room_of(host[i]));
  const int stages = std::min<int>(kMostStages, int((kMostShared - sizeof(Shared) - 64 - room) / kStage));
  const size_t bytes = size_t(stages) * kStage + room;
  allow_shared(chain_kernel, bytes);
  cudaLaunchAttribute attribute[3]{};
  cudaLaunchConfig_t config{};
  config.numAttrs = unsigned(common_attributes(attribute)) + 1;
  attribute[2].id = cudaLaunchAttributeCooperative;  // blocks wait for each other
  attribute[2].val.cooperative = 1;
  config.gridDim = dim3(unsigned(at.n_sm)), config.blockDim = dim3(kThreads), config.dynamicSmemBytes = bytes, config.stream = at.stream;
  config.attrs = attribute;
  must(cudaLaunchKernelEx(&config, chain_kernel, Program{device, n, stages, memory}));
}

}  // namespace mr::cuda
