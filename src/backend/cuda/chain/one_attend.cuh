// The attention of one row in one_row.cu: blocks take tiles of a K/V head's tokens, and whoever comes last merges what they found.
#pragma once

#include "backend/cuda/chain/ring.cuh"

namespace mr::cuda {

namespace {

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
    if (call.rope.angles) {
      c = call.rope.angles[i];
      s = call.rope.angles[i + D / 2];
    }
    bf16* to = reinterpret_cast<bf16*>(turned[row < group ? row : kGroup]);
    to[i] = __float2bfloat16(a * c - b * s);
    to[i + D / 2] = __float2bfloat16(b * c + a * s);
  }
  if (newest && threadIdx.x < D / 8) turned[kGroup + 1][threadIdx.x] = __ldcg(reinterpret_cast<const uint4*>(v) + threadIdx.x);
}

// n findings, kAtOnce asked for at a time, first to last; all have seen something.
template <int kAtOnce, class Weight, class Values>
__device__ Found merged(int n, Weight weight, Values values) {
  Found f;
#pragma unroll 1
  for (int from = 0; from < n; from += kAtOnce) {
    float2 ml[kAtOnce], o[kAtOnce];
    float top = f.most;
#pragma unroll
    for (int j = 0; j < kAtOnce; j++) {
      ml[j] = make_float2(-INFINITY, 0);
      o[j] = make_float2(0, 0);
      if (from + j < n) {
        ml[j] = weight(from + j);
        o[j] = values(from + j);
      }
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; j++) top = fmaxf(top, ml[j].x);
    const float shrink = exp2_fast(f.most - top);
    f.total *= shrink;
    f.x *= shrink;
    f.y *= shrink;
    f.most = top;
#pragma unroll
    for (int j = 0; j < kAtOnce; j++) {
      const float w = exp2_fast(ml[j].x - top);
      f.total += w * ml[j].y;
      f.x += w * o[j].x;
      f.y += w * o[j].y;
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
  if (t == 0) {
    shared.m[warp][g] = sums.m;
    shared.l[warp][g] = sums.l;
  }
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
      f.total = f.total * shrink + exp2_fast(sink - top);
      f.x *= shrink;
      f.y *= shrink;
    }
    const int64_t to = (kv_head * group + head) * call.out.head_stride + d;
    store(call.out.data, call.out.dtype, to, f.x / f.total);
    store(call.out.data, call.out.dtype, to + 1, f.y / f.total);
  }
}

}  // namespace

}  // namespace mr::cuda
