// Work items of prefill.cu's blocks, 128 rows each, and the producer warps that copy their queries, keys and values.
#pragma once

#include <cuda.h>

#include "backend/cuda/attention/pages.cuh"
#include "backend/cuda/device/tensor_map.cuh"

namespace mr::cuda {

namespace {

constexpr int kGroups = 2, kThreads = 128 * (kGroups + 1), kMostStages = 6;

// Heads of kDim dimensions. Fixed, in deterministic mode: keys are summed in spans, with tiles so small that the sums of the earlier
// spans fit in registers beside those of the current one; not those of wide heads, which are summed as one.
template <int kDim, bool kFixed>
struct Form {
  static constexpr int D = kDim;
  static constexpr bool spans = kFixed && D <= 128;
  static constexpr int keys = D > 128 || spans ? kSpanTile : 128, stages = D > 128 ? 2 : spans ? 6 : 3;  // tokens per tile; tiles in flight
  static constexpr int sides = D / 64;  // blocks of 64 dimensions, 128 bytes per row
  static constexpr int q = sides * kPrefillRows * 128, tile = sides * keys * 128;
  static constexpr int all = q + stages * 2 * tile + 1024;
};

__device__ void copy16(uint32_t to, const void* from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}
__device__ void turn_wait(int group) { asm volatile("bar.sync %0, 256;" ::"r"(2 + group) : "memory"); }
__device__ void turn_give(int group) { asm volatile("bar.arrive %0, 256;" ::"r"(2 + group) : "memory"); }

// Layout of tiles: `pack` query heads of a K/V head per row of a sequence, `groups` times 64 (row, head) pairs.
struct Layout {
  const PrefillTile* tiles;
  DecodePlan shared;  // replaces tiles, for shared prefixes
  int n_tiles, pack, groups;
  int piece;  // contiguous tokens of K or V per copy
  __device__ bool is_shared() const { return shared.shared_room > 0; }
  __device__ bool copies_q() const { return pack > 1 || is_shared(); }  // consumers copy q themselves, else a producer does
};

// An item as stored: PrefillTile or SharedTile.
struct Raw {
  int v[6];
};
static_assert(sizeof(PrefillTile) == sizeof(Raw) && sizeof(SharedTile) == sizeof(Raw));
__device__ Raw load_raw(const AttendCall& call, const Layout& layout, int item) {
  const int at = item / (call.heads / layout.pack);
  const int* from = layout.is_shared() ? &layout.shared.shared[at].first : &layout.tiles[at].seq;
  Raw raw;
#pragma unroll
  for (int i = 0; i < 6; i++) raw.v[i] = from[i];
  return raw;
}

// A work item of a block. Its row r is row token(r) of the sequence, or the token(r)-th of the sequences that share the keys,
// and query head head(r).
template <class F>
struct Work {
  int head0, seq, row, first, n_rows, context, begin, end, pack, part;
  bool causal;
  __device__ Work(const AttendCall& call, const Layout& layout, int item, const Raw& raw) {
    const int n_heads = call.heads / layout.pack;
    pack = layout.pack;
    head0 = item % n_heads * pack;
    if (layout.is_shared()) {
      first = raw.v[0];
      n_rows = raw.v[1];
      seq = raw.v[2];
      begin = raw.v[3];
      end = raw.v[4];
      part = raw.v[5];
      row = 0;
      context = end;
      causal = true;  // all rows see all of it
      return;
    }
    seq = raw.v[0];
    row = raw.v[1];
    first = raw.v[2];
    n_rows = raw.v[3];
    context = raw.v[4];
    causal = raw.v[5];
    part = 0;
    end = causal ? min(context + row + layout.groups * 64 / pack, context + n_rows) : context + n_rows;
    begin = call.window ? max(0, context + (causal ? row : 0) - call.window + 1) / F::keys * F::keys : 0;
  }
  __device__ Work(const AttendCall& call, const Layout& layout, int item) : Work(call, layout, item, load_raw(call, layout, item)) {}
  __device__ int token(int r) const { return row + (pack == 1 ? r : r / pack); }
  __device__ int head(int r) const { return head0 + (pack == 1 ? 0 : r % pack); }
  __device__ int q_row(const Layout& layout, int token) const {  // of the batch
    return layout.is_shared() ? layout.shared.shared_row[first + token].row : first + token;
  }
  __device__ int n() const { return (end - begin + F::keys - 1) / F::keys; }
};

__device__ int count_items(const AttendCall& call, const Layout& layout) {
  return (layout.is_shared() ? *layout.shared.n_shared : layout.n_tiles) * (call.heads / layout.pack);
}

// The items of a block, longest first, in snake order over the blocks for balance; -1: no more.
__device__ int item_at(int turn, int n_items) {
  const int n = gridDim.x, at = turn * n + (turn % 2 ? n - 1 - int(blockIdx.x) : int(blockIdx.x));
  return at < n_items ? at : -1;
}

struct Barriers {
  uint64_t full[2 * kMostStages], empty[2 * kMostStages];  // of K and V of each stage
  uint64_t q_full[kGroups], q_empty[kGroups];
};

// Producer thread of the queries of all warpgroups that attend.
template <class F>
__device__ void bring_queries(const AttendCall& call, const CUtensorMap& map, const Layout& layout, uint32_t to, Barriers& b) {
  const int n_items = count_items(call, layout);
  for (int turn = 0, item; (item = item_at(turn, n_items)) >= 0; turn++) {
    const PrefillTile& tile = layout.tiles[item / call.heads];
    const int row = tile.first + tile.row, head = item % call.heads;
    for (int g = 0; g < layout.groups; g++) {
      barrier_wait(&b.q_empty[g], (turn & 1) ^ 1);
      barrier_expect(&b.q_full[g], F::q / kGroups);
      for (int h = 0; h < F::sides; h++)
        copy_box(to + h * kPrefillRows * 128 + g * 64 * 128, map, 64 * h, head, row + g * 64, &b.q_full[g], kReadOnce);
    }
  }
}

// Producer warp of all tiles of K (side 0) or V (side 1); each lane copies one piece of a tile.
template <class F>
__device__ void bring_tiles(const AttendCall& call, const CUtensorMap& map, const Layout& layout, int side, uint32_t to, Barriers& b) {
  const Pages& pages = call.pages;
  const int lane = threadIdx.x % 32, n_items = count_items(call, layout), n_pieces = F::keys / layout.piece;
  int stage = 0, parity = 1;
  for (int turn = 0, item; (item = item_at(turn, n_items)) >= 0; turn++) {
    const Work<F> work(call, layout, item);
    const int plane = side * pages.kv_heads + work.head0 / (call.heads / pages.kv_heads);
    const int32_t* table = pages.unit + pages.begin[work.seq];
    for (int key = work.begin; key < work.end; key += F::keys) {
      const int token = key + lane * layout.piece, page = page_number(pages, token);
      const int unit = lane < n_pieces && token < work.end ? table[page] : -1;  // -1: out of bounds, filled with zeros
      uint64_t* barrier = &b.full[2 * stage + side];
      if (lane == 0) {
        barrier_wait(&b.empty[2 * stage + side], parity);
        barrier_expect(barrier, F::tile);
      }
      __syncwarp();
      if (lane < n_pieces)
        for (int h = 0; h < F::sides; h++)
          copy_box(to + stage * F::tile + h * F::keys * 128 + lane * layout.piece * 128, map, 64 * h, token - page * pages.page_tokens,
                   plane, unit, barrier, kReadAgain);
      if (++stage == F::stages) {
        stage = 0;
        parity ^= 1;
      }
    }
  }
}

}  // namespace

}  // namespace mr::cuda
