// Deterministic attention of new tokens by the eight worker warps of a block, with the bits of prefill.cu. Keys and values come through the
// block's ring, a tile of kSpanTile keys per stage, swizzled for wgmma. Keys are the rows of the product that gives scores, dimensions
// those of the one with the values, and the few query heads are the columns of both. The first warpgroup computes the scores and weights
// of a tile; then each warpgroup has 64 dimensions of the values, and the second adds up the weights. A block that has a sequence alone
// merges its spans as they come; else each leaves its partial softmax in memory, and the block that finishes last merges them.
#pragma once

#include "backend/cuda/attention/rope.cuh"
#include "backend/cuda/chain/attend.cuh"
#include "backend/cuda/device/tensor_map.cuh"
#include "backend/cuda/device/wgmma.cuh"

namespace mr::cuda {

// Tokens per copy.
__host__ __device__ inline int span_piece(const Pages& p) { return p.page_tokens % 64 == 0 ? 64 : p.page_tokens % 32 == 0 ? 32 : 16; }

// A stage: K, then V, each as D / 64 blocks of 64 dimensions.
template <int D>
struct SpanStage {
  static constexpr int side = kSpanTile * 128, values = D / 64 * side, bytes = 2 * values;
};

// Shared by the warps of an attention; 1024-byte aligned.
template <int D>
struct SpanRoom {
  char q[D / 64][kGroup * 128];           // query heads, rotated, 64 dimensions per row
  char weights[2][kGroup * 128];          // of a tile's keys for each head, as bf16; double buffered, as are the next two
  float exact[2][kGroup][4 * kTile + 4];  // the same in f32; rows are padded to avoid bank conflicts
  float shrink[2][kGroup];                // factor of the sums so far
  float most[4][kGroup];                  // of a warp's keys
  float span_most[kGroup], span_total[kGroup];
  uint4 fresh[2][D / 8];  // the new key, rotated, and the new value
};

// Copies a part's keys and values, one tile per stage. Those of this step's token are stale, and replaced on arrival.
template <int D>
__device__ void fetch_spans(uint32_t ring, int stage_bytes, int stages, uint64_t* full, uint64_t* empty, const CUtensorMap& map,
                            const AttendCall& call, const Part& part, Fetching& fetching) {
  using Stage = SpanStage<D>;
  const Pages& pages = call.pages;
  const int lane = threadIdx.x % 32, first = part.first_tile * kSpanTile;
  const int piece = span_piece(pages), n = kSpanTile / piece;  // n: pieces of a tile
  auto unit_of = [&](int i) {                                  // of the i-th piece; -1: out of bounds, filled with zeros
    const int token = first + i * piece;
    return token < part.end ? pages.unit[part.table + page_number(pages, token)] : -1;
  };
  // A lane copies piece lane % n of block lane / n % (D / 64) of K, or of V.
  const int own = lane % n, block = lane / n % (D / 64), of_v = lane / n / (D / 64);
  int unit = unit_of(lane), next = unit_of(32 + lane);  // of 32 pieces, and of the next 32
  for (int tile = 0; tile < part.n_tiles; tile++, fetching.turn.next(stages)) {
    const int from = tile * n, token = first + (from + own) * piece;
    if (tile > 0 && from % 32 == 0) {
      unit = next;
      next = unit_of(from + 32 + lane);
    }
    const int here = __shfl_sync(~0u, unit, from % 32 + own);
    fetching.begin(full, empty, stages, Stage::bytes);
    if (of_v < 2)
      copy_box(ring + fetching.turn.at * stage_bytes + of_v * Stage::values + block * Stage::side + own * piece * 128, map, 64 * block,
               token - page_number(pages, token) * pages.page_tokens, of_v * pages.kv_heads + part.kv_head, here, &full[fetching.turn.at],
               kReadOnce);
  }
}

// The softmax of a span as far as it is computed, of one thread. In a warpgroup's warp w, lane 4 g + t has dimensions 16 w + g and + 8 of
// the group's 64 for heads 2 t and 2 t + 1.
struct SpanSums {
  float o[4], m[2];  // m: the largest scores of the heads; first warpgroup
  float l;           // second warpgroup, thread 16 h + i: weights of head h, of the keys that lane i / 2 % 4 of prefill.cu sums
  __device__ void clear() {
    o[0] = o[1] = o[2] = o[3] = l = 0;
    m[0] = m[1] = -INFINITY;
  }
};
struct MergedSpans {
  float o[4] = {}, most[2] = {-INFINITY, -INFINITY}, total[2] = {};
};

// Called by all workers once `room` is free.
template <int D>
struct SpanAttend {
  using Stage = SpanStage<D>;
  SpanRoom<D>& room;
  const AttendCall& call;
  const DecodePlan& plan;
  const Part& part;
  const int warp = threadIdx.x / 32 % 4, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, heads = call.heads / call.pages.kv_heads;
  const int group = __shfl_sync(~0u, int(threadIdx.x) / 128, 0);                            // warpgroup; the compiler knows it is uniform
  const float factor = call.softcap != 0 ? kLog2e : call.scale * kLog2e;                    // converts scores to base-2 exponents
  const int64_t step = int64_t(call.pages.kv_heads) * kGroup * kPart<D>;                    // from a span's partial result to the next's
  float* const parts = plan.partial + part.slot * step + part.kv_head * kGroup * kPart<D>;  // of the sequence's first span

  __device__ static void fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
  __device__ static void first_group_sync() { asm volatile("bar.sync 2, 128;" ::: "memory"); }

  // Rotates the queries, and the new key if it is in the part, into shared memory, together with the new value.
  __device__ void turn_heads() {
    const bf16* q = static_cast<const bf16*>(call.q.data) + part.row * call.q.stride + part.kv_head * heads * call.q.head_stride;
    const bf16* k = static_cast<const bf16*>(call.k.data) + part.row * call.k.stride + part.kv_head * call.k.head_stride;
    const bf16* v = static_cast<const bf16*>(call.v.data) + part.row * call.v.stride + part.kv_head * call.v.head_stride;
    const float* angles = call.rope.angles ? call.rope.angles + part.row * call.rope.stride : nullptr;
    const bool fresh = part.newest && call.k.data;
    auto value = [](const bf16* p) { return low(__ldcg(reinterpret_cast<const uint16_t*>(p))); };
    auto query = [&](int row, int i) {
      return reinterpret_cast<bf16*>(room.q[i / 64] + swizzle(uint32_t(row), uint32_t(i % 64 / 8)) + i % 8 * 2);
    };
#pragma unroll 2
    for (int p = threadIdx.x; p < (kGroup + fresh) * (D / 2); p += kWorkers) {
      const int row = p / (D / 2), i = p % (D / 2);
      const bf16* from = row < heads ? q + row * call.q.head_stride : k;
      float2 turned{};
      if (row < heads || row == kGroup) turned = make_float2(value(from + i), value(from + i + D / 2));
      if (angles) turned = rotate_pair(turned.x, turned.y, angles[i], angles[i + D / 2]);
      bf16* key = reinterpret_cast<bf16*>(room.fresh[0]);
      *(row < kGroup ? query(row, i) : key + i) = __float2bfloat16(turned.x);
      *(row < kGroup ? query(row, i + D / 2) : key + i + D / 2) = __float2bfloat16(turned.y);
    }
    if (fresh && threadIdx.x < D / 8) room.fresh[1][threadIdx.x] = __ldcg(reinterpret_cast<const uint4*>(v) + threadIdx.x);
    fence();
  }

  // First warpgroup, in the last tile: writes the new key and value to the stage and to their page, unless they are stored already, and
  // clears the values after it, which may be NaN.
  __device__ void put_newest(char* stage) {
    const int row = part.context % kSpanTile, lane = threadIdx.x % 32, of_v = lane / 16, i = lane % 16;
    auto place = [&](bool v, int row, int piece) {
      return reinterpret_cast<uint4*>(stage + v * Stage::values + piece / 8 * Stage::side + swizzle(uint32_t(row), uint32_t(piece % 8)));
    };
    if (call.k.data && warp == 0 && i < D / 8) {
      const uint4 x = room.fresh[of_v][i];
      bf16* page =
          reinterpret_cast<bf16*>(call.pages.base) + part.stored + int64_t(of_v) * call.pages.kv_heads * call.pages.page_tokens * D;
      *place(of_v, row, i) = x;
      *reinterpret_cast<uint4*>(page + i * 8) = x;
    }
    for (int e = threadIdx.x; e < (kSpanTile - 1 - row) * (D / 8); e += 128) *place(true, row + 1 + e / (D / 8), e % (D / 8)) = uint4{};
    fence();
    first_group_sync();
  }

  // First warpgroup: the scores of a tile that begins at token `at`, and from them the weights. A thread has keys 16 warp + g and + 8 of
  // heads 2 t and 2 t + 1.
  __device__ void weigh(SpanSums& sums, uint32_t stage, int at, int turn) {
    const uint64_t keys = rows_descriptor(stage), q = rows_descriptor(shared_address(room.q));
    float s[4] = {};
    settle(s);
    wgmma_begin();
#pragma unroll
    for (int k = 0; k < D / 16; k++)
      wgmma(s, keys + (k / 4 * Stage::side + k % 4 * 32) / 16, q + (k / 4 * kGroup * 128 + k % 4 * 32) / 16, k > 0);
    wgmma_commit();
    wgmma_wait<0>();
    settle(s);
    if (call.softcap != 0) {
      const float slope = cap_slope(call.scale, call.softcap);
#pragma unroll
      for (float& x : s) x = capped(x, call.softcap, slope);
    }
#pragma unroll
    for (int e = 0; e < 4; e++) {
      const int token = at + kTile * warp + g + (e & 2 ? 8 : 0);
      if (token < part.begin || token >= part.end) s[e] = -INFINITY;
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
      float top = fmaxf(s[h], s[2 + h]);
#pragma unroll
      for (int i = 4; i < 32; i *= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, i));
      if (g == 0) room.most[warp][2 * t + h] = top;
    }
    first_group_sync();
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const int head = 2 * t + h;
      float top = sums.m[h];
#pragma unroll
      for (int w = 0; w < 4; w++) top = fmaxf(top, room.most[w][head]);
      const float base = top == -INFINITY ? 0.0f : __fmul_rn(top, factor);
      if (warp == 0 && g == 0) room.shrink[turn][head] = exp2_fast(__fmul_rn(sums.m[h], factor) - base);
      sums.m[h] = top;
#pragma unroll
      for (int e = 0; e < 2; e++) {
        const int in = g + 8 * e, key = kTile * warp + in;
        const float weight = exp2_fast(fmaf(s[2 * e + h], factor, -base));
        room.exact[turn][head][kTile * warp + in] = weight;
        *reinterpret_cast<bf16*>(room.weights[turn] + swizzle(uint32_t(head), uint32_t(key / 8)) + key % 8 * 2) = __float2bfloat16(weight);
      }
    }
    fence();
  }

  // The values of a tile; only warpgroups below D / 64 have dimensions.
  __device__ void begin_values(SpanSums& sums, uint32_t stage, int turn) {
    const uint64_t values = columns_descriptor(stage + Stage::values + group * Stage::side, Stage::side),
                   weights = rows_descriptor(shared_address(room.weights[turn]));
#pragma unroll
    for (int e = 0; e < 4; e++) sums.o[e] *= room.shrink[turn][2 * t + e % 2];
    settle(sums.o);
    wgmma_begin();
#pragma unroll
    for (int k = 0; k < kSpanTile / 16; k++) wgmma_columns(sums.o, values + k * (2048 / 16), weights + k * (32 / 16));
    wgmma_commit();
  }

  // Second warpgroup: prefill.cu's order. Lane t of a row there sums keys 2 t, 2 t + 1, 2 t + 8 and 2 t + 9 of every 16 in four chains.
  __device__ void add_weights(SpanSums& sums, int turn) {
    const int j = threadIdx.x % 128, head = j / kTile;
    const float* from = &room.exact[turn][head][j % kTile];
    float sum = ((from[0] + from[kTile]) + from[2 * kTile]) + from[3 * kTile];
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 8);
    sums.l = fmaf(sums.l, room.shrink[turn][head], sum);
  }

  // The sum of a span's weights, in threads 16 h of the second warpgroup.
  __device__ float total(const SpanSums& sums) const {
    float l = sums.l;
    l += __shfl_xor_sync(~0u, l, 2);
    return l + __shfl_xor_sync(~0u, l, 4);
  }
  __device__ int dimension(int e) const { return 64 * group + kTile * warp + g + (e & 2 ? 8 : 0); }

  // Writes the partial softmax of a span to memory.
  __device__ void leave(const SpanSums& sums, int span) {
    float* to = parts + span * step;
    if (group < D / 64) {
#pragma unroll
      for (int e = 0; e < 4; e++)
        if (2 * t + e % 2 < heads) to[(2 * t + e % 2) * kPart<D> + dimension(e)] = sums.o[e];
    }
    if (group == 0) {
#pragma unroll
      for (int h = 0; h < 2; h++)
        if (warp == 0 && g == 0 && 2 * t + h < heads) to[(2 * t + h) * kPart<D> + D] = __fmul_rn(sums.m[h], factor);
    } else {
      const float l = total(sums);
      const int j = threadIdx.x % 128, head = j / kTile;
      if (j % kTile == 0 && head < heads) to[head * kPart<D> + D + 1] = l;
    }
  }

  // Merges a span into the earlier ones.
  __device__ void fold(const SpanSums& sums, MergedSpans& all) {
    if (group == 0) {
#pragma unroll
      for (int h = 0; h < 2; h++)
        if (warp == 0 && g == 0) room.span_most[2 * t + h] = __fmul_rn(sums.m[h], factor);
    } else {
      const float l = total(sums);
      if (threadIdx.x % kTile == 0) room.span_total[threadIdx.x % 128 / kTile] = l;
    }
    workers_meet();
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const float2 by = merge_weights(all.most[h], room.span_most[2 * t + h]);
      all.total[h] = merge_sums(all.total[h], room.span_total[2 * t + h], by);
#pragma unroll
      for (int e = h; e < 4; e += 2) all.o[e] = merge_sums(all.o[e], sums.o[e], by);
    }
  }
  __device__ void write(MergedSpans& all) {
    if (group >= D / 64) return;
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const int head = part.kv_head * heads + 2 * t + h;
      if (2 * t + h >= heads) continue;
      const float value = call.sinks ? add_sink(call.sinks[head], all.most[h], all.total[h]) : 1.0f, scale = value / all.total[h];
#pragma unroll
      for (int e = h; e < 4; e += 2)
        store(call.out.data, call.out.dtype, part.row * call.out.stride + head * call.out.head_stride + dimension(e), all.o[e] * scale);
    }
  }

  // Merges all spans of the sequence from memory, and writes the result: two consecutive dimensions per thread.
  __device__ void merge() {
    constexpr int kAtOnce = 8;  // loads in flight
    const int first = call.window ? max(0, part.context + 1 - call.window) / kSpan : 0, n = part.context / kSpan + 1;
    for (int i = threadIdx.x; i < heads * D / 2; i += kWorkers) {
      const int head = i / (D / 2), d = i % (D / 2) * 2;
      float most = -INFINITY, total = 0, x = 0, y = 0;
#pragma unroll 1
      for (int from = first; from < n; from += kAtOnce) {
        float2 ml[kAtOnce], o[kAtOnce];
#pragma unroll
        for (int j = 0; j < kAtOnce; j++) {
          const float* span = parts + min(from + j, n - 1) * step + head * kPart<D>;
          ml[j] = __ldcg(reinterpret_cast<const float2*>(span + D));
          o[j] = __ldcg(reinterpret_cast<const float2*>(span + d));
        }
#pragma unroll
        for (int j = 0; j < kAtOnce; j++) {
          if (from + j >= n) break;
          const float2 by = merge_weights(most, ml[j].x);
          total = merge_sums(total, ml[j].y, by);
          x = merge_sums(x, o[j].x, by);
          y = merge_sums(y, o[j].y, by);
        }
      }
      const int query = part.kv_head * heads + head;
      const float value = call.sinks ? add_sink(call.sinks[query], most, total) : 1.0f, scale = value / total;
      const int64_t to = part.row * call.out.stride + query * call.out.head_stride + d;
      store(call.out.data, call.out.dtype, to, x * scale);
      store(call.out.data, call.out.dtype, to + 1, y * scale);
    }
  }

  // stages(f) calls f(index, address) for every tile of the part once it is loaded.
  template <class Stages>
  __device__ void run(int& last, Stages stages) {
    turn_heads();
    workers_meet();
    SpanSums sums;
    MergedSpans all;
    stages([&](int i, char* stage) {
      const int tile = part.first_tile + i, at = tile * kSpanTile, turn = i & 1;
      const uint32_t address = shared_address(stage);
      if (i == 0 || at % kSpan == 0) sums.clear();
      if (group == 0) {
        if (part.newest && i == part.n_tiles - 1) put_newest(stage);
        weigh(sums, address, at, turn);
      }
      workers_meet();
      if (group < D / 64) begin_values(sums, address, turn);
      if (group == 1) add_weights(sums, turn);
      wgmma_wait<0>();
      settle(sums.o);
      if (i < part.n_tiles - 1 && (at + kSpanTile) % kSpan) return;
      part.count == 1 ? fold(sums, all) : leave(sums, at / kSpan);
    });
    if (part.count == 1) return write(all);
    workers_meet();
    if (threadIdx.x == 0) last = arrives_last(plan.arrived + part.seq * call.pages.kv_heads + part.kv_head, part.count);
    workers_meet();
    if (last) merge();
  }
};

}  // namespace mr::cuda
