// Attention of new tokens by the eight worker warps of a block that runs a chain of operations: parts of sequences, whose keys and
// values come through the block's ring, four tiles of 16 tokens per stage. The new key is also rotated and stored. Parts of a
// sequence are merged, first to last, by the block that finishes last.
#pragma once

#include "backend/cuda/attention/warp.cuh"
#include "backend/cuda/chain/common.cuh"

namespace mr::cuda {

// A block's part of an attention: n_tiles tiles of 16 tokens of one sequence and K/V head, from first_tile on, of which tokens
// [begin, end) are visible; the index-th of `count` such parts; count 0: empty.
struct Part {
  int seq, row, context, begin, end, index, count, slot, kv_head, first_tile, n_tiles;
  int table;       // offset of the sequence's block table
  bool newest;     // whether it contains this step's token
  int64_t stored;  // address of that token's key, in values from the first page
};

// Address of a token's key, in values from the first page.
__device__ inline int64_t place_of(const Pages& pages, int table, int kv_head, int token) {
  const int page = page_number(pages, token), in_page = token - page * pages.page_tokens;
  return pages.unit[table + page] * (pages.unit_bytes / 2) + (int64_t(kv_head) * pages.page_tokens + in_page) * pages.k_dim;
}

// The part of an item and a K/V head, in tiles of kTokens tokens. Of spans, the slot is that of the sequence's first one.
template <int kTokens>
__device__ Part part_of(const AttendCall& call, const DecodeItem& item, int kv_head) {
  const Pages& pages = call.pages;
  Part p{item.seq, item.row, item.context, item.begin, item.end, item.index, item.count, item.slot, kv_head};
  if (p.count == 0) return p;
  if (kTokens == kSpanTile) p.slot -= p.begin / kSpan;
  p.table = pages.group < 5 ? item.table[pages.group] : pages.begin[p.seq];
  if (call.window) p.begin = max(p.begin, p.context + 1 - call.window);
  p.first_tile = p.begin / kTokens;
  p.n_tiles = p.begin < p.end ? (p.end - 1) / kTokens + 1 - p.first_tile : 0;
  p.newest = p.end == p.context + 1;
  if (p.newest) p.stored = place_of(pages, p.table, p.kv_head, p.context);
  return p;
}

// Shared by the warps of an attention, beside Softmaxes.
template <int D>
struct Mixing {
  uint4 turned[kGroup + 2][D / 8];  // the query heads of a group, rotated; then the new key, and the new value
  // The values of warp w and head h; [kWarps][heads of a group] of them follow this struct.
  __device__ float* found(int w, int group, int h) { return reinterpret_cast<float*>(this + 1) + (w * group + h) * kPart<D>; }
};
struct Softmaxes {
  float m[kWarps][kGroup], l[kWarps][kGroup];
  int last;
};

// Block table lookups of the part's tiles: a warp reads 32 entries at a time, and prefetches the next 32.
struct TilePages {
  const AttendCall& call;
  const Part& part;
  int unit = 0, next = 0, from = -64;

  __device__ int unit_of(int tile) const {
    return tile < part.n_tiles ? call.pages.unit[part.table + page_number(call.pages, (part.first_tile + tile) * kTile)] : 0;
  }
  // Address of this lane's tile of [tile, tile + kTiles): keys for the first kTiles lanes, values for the next.
  __device__ const std::byte* at(int tile) {
    const Pages& pages = call.pages;
    const int lane = threadIdx.x % 32, own = lane % kTiles, token = (part.first_tile + tile + own) * kTile;
    if (tile >= from + 32) {
      unit = from < 0 ? unit_of(lane) : next;
      from = tile;
      next = unit_of(from + 32 + lane);
    }
    const int64_t head = part.kv_head + (lane >= kTiles ? pages.kv_heads : 0), row_bytes = pages.k_dim * 2;
    return pages.base + __shfl_sync(~0u, unit, tile - from + own) * pages.unit_bytes + head * pages.page_tokens * row_bytes +
           (token - page_number(pages, token) * pages.page_tokens) * row_bytes;
  }
};

// Copies a part's keys and values, kTiles tiles per stage. Those of this step's token are stale, and replaced on arrival.
// ring: of `stages` stages, stage_bytes each.
__device__ inline void fetch_part(uint32_t ring, int stage_bytes, int stages, uint64_t* full, uint64_t* empty, const AttendCall& call,
                                  const Part& part, Fetching& fetching) {
  const int lane = threadIdx.x % 32, own = lane % kTiles, bytes = kTile * call.pages.k_dim * 2;
  const Turn& turn = fetching.turn;
  TilePages pages{call, part};
  for (int tile = 0; tile < part.n_tiles; tile += kTiles, fetching.turn.next(stages)) {
    const int n = min(kTiles, part.n_tiles - tile);
    const std::byte* from = pages.at(tile);
    fetching.begin(full, empty, stages, n * 2 * bytes);
    if (lane < 2 * kTiles && own < n)
      copy_bytes(ring + turn.at * stage_bytes + (2 * own + lane / kTiles) * bytes, from, bytes, &full[turn.at], kReadOnce);
  }
}

// Rotates the queries of a group, and the new key if it is in the part, into shared memory, together with the new value.
template <int D>
__device__ void turn_heads(uint4 (&turned)[kGroup + 2][D / 8], const AttendCall& call, const Part& mine, int group) {
  const bf16* q = static_cast<const bf16*>(call.q.data) + mine.row * call.q.stride + mine.kv_head * group * call.q.head_stride;
  const bf16* k = static_cast<const bf16*>(call.k.data) + mine.row * call.k.stride + mine.kv_head * call.k.head_stride;
  const bf16* v = static_cast<const bf16*>(call.v.data) + mine.row * call.v.stride + mine.kv_head * call.v.head_stride;
  const float* angles = call.rope.angles ? call.rope.angles + mine.row * call.rope.stride : nullptr;
  auto value = [](const bf16* p) { return low(__ldcg(reinterpret_cast<const uint16_t*>(p))); };
#pragma unroll 2
  for (int p = threadIdx.x; p < (group + mine.newest) * (D / 2); p += kWorkers) {
    const int row = p / (D / 2), i = p % (D / 2);
    const bf16* from = row < group ? q + row * call.q.head_stride : k;
    const float a = value(from + i), b = value(from + i + D / 2);
    float c = 1, s = 0;
    if (angles) {
      c = angles[i];
      s = angles[i + D / 2];
    }
    bf16* to = reinterpret_cast<bf16*>(turned[row < group ? row : kGroup]);
    to[i] = __float2bfloat16(a * c - b * s);
    to[i + D / 2] = __float2bfloat16(b * c + a * s);
  }
  if (mine.newest && threadIdx.x < D / 8) turned[kGroup + 1][threadIdx.x] = __ldcg(reinterpret_cast<const uint4*>(v) + threadIdx.x);
}

// Writes the new key and value to their tile in the ring and to their page.
template <int D>
__device__ void put_newest(bf16 (&stage)[2][kTile * D], const uint4 (&turned)[kGroup + 2][D / 8], const AttendCall& call,
                           const Part& mine) {
  const int lane = threadIdx.x % 32, part = lane / 16, i = lane % 16;  // lower lanes: key, upper lanes: value
  if (i < D / 8) {
    const uint4 x = turned[kGroup + part][i];
    bf16* page = reinterpret_cast<bf16*>(call.pages.base) + mine.stored + int64_t(part) * call.pages.kv_heads * call.pages.page_tokens * D;
    *reinterpret_cast<uint4*>(&stage[part][mine.context % kTile * D + i * 8]) = x;
    *reinterpret_cast<uint4*>(page + i * 8) = x;
  }
  __syncwarp();
}

// Writes a warp's partial softmax to shared memory.
template <int D>
__device__ void leave(Softmaxes& shared, Mixing<D>& room, Sums<D>& sums, int group) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  sums.l += __shfl_xor_sync(~0u, sums.l, 1);
  sums.l += __shfl_xor_sync(~0u, sums.l, 2);
  if (t == 0) {
    shared.m[warp][g] = sums.m;
    shared.l[warp][g] = sums.l;
  }
  if (g >= group) return;
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

// Merges the warps' partial softmaxes into the part's; the last block of a sequence merges its parts.
template <int D>
__device__ void merge_parts(Softmaxes& shared, Mixing<D>& room, const AttendCall& call, const DecodePlan& plan, const Part& mine,
                            int group) {
  const int kv_head = mine.kv_head;
  const int64_t step = int64_t(call.pages.kv_heads) * kGroup * kPart<D>;
  float* parts = plan.partial + (int64_t(mine.slot - mine.index) * call.pages.kv_heads + kv_head) * kGroup * kPart<D>;
  for (int i = threadIdx.x; i < group * D / 2; i += kWorkers) {
    const int head = i / (D / 2), d = i % (D / 2) * 2;
    const Found f = merged<kWarps>(
        kWarps, [&](int w) { return make_float2(shared.m[w][head], shared.l[w][head]); },
        [&](int w) { return *reinterpret_cast<const float2*>(room.found(w, group, head) + d); });
    if (mine.count == 1) {
      write_head(call, mine.row, kv_head * group + head, d, f);
      continue;
    }
    float* to = parts + mine.index * step + head * kPart<D>;
    *reinterpret_cast<float2*>(to + d) = make_float2(f.x, f.y);
    if (d == 0) *reinterpret_cast<float2*>(to + D) = make_float2(f.most, f.total);
  }
  if (mine.count == 1) return;
  workers_meet();
  if (threadIdx.x == 0) shared.last = arrives_last(plan.arrived + mine.seq * call.pages.kv_heads + kv_head, mine.count);
  workers_meet();
  if (!shared.last) return;
  for (int i = threadIdx.x; i < group * D / 2; i += kWorkers) {
    const int head = i / (D / 2), d = i % (D / 2) * 2;
    const float* part = parts + head * kPart<D>;
    const Found f = merged<16>(
        mine.count, [&](int j) { return __ldcg(reinterpret_cast<const float2*>(part + j * step + D)); },
        [&](int j) { return __ldcg(reinterpret_cast<const float2*>(part + j * step + d)); });
    write_head(call, mine.row, kv_head * group + head, d, f);
  }
}

// Called by all workers once `room` is free. stages(f) calls f(index, address) for every stage of the part once it is
// loaded.
template <int D, class Stages>
__device__ void attend_part(Softmaxes& shared, Mixing<D>& room, const AttendCall& call, const DecodePlan& plan, const Part& mine,
                            Stages stages) {
  constexpr int kTeams = kWarps / kTiles;  // each processes whole stages in turn
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, group = call.heads / call.pages.kv_heads;
  turn_heads<D>(room.turned, call, mine, group);
  workers_meet();
  uint4 q[D / 32] = {};
  if (g < group) {
#pragma unroll
    for (int c = 0; c < D / 32; c++) q[c] = room.turned[g][4 * c + t];
  }
  Sums<D> sums;
  stages([&](int s, char* place) {
    const int tile = s * kTiles + warp % kTiles, at = (mine.first_tile + tile) * kTile;
    if (s % kTeams != warp / kTiles || tile >= mine.n_tiles) return;
    auto& stage = reinterpret_cast<bf16(*)[2][kTile * D]>(place)[warp % kTiles];
    if (mine.newest && tile == mine.n_tiles - 1) put_newest<D>(stage, room.turned, call, mine);
    Tile<D> keys;
    keys.load(stage, mine.begin - at, mine.end - at, g, t);
    sums.take(keys, q, call, mine.begin - at, mine.end - at, t);
  });
  leave(shared, room, sums, group);
  workers_meet();
  merge_parts(shared, room, call, plan, mine, group);
}

}  // namespace mr::cuda
