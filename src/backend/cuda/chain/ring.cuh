// Shared by the warps of one_row.cu's blocks: the program's steps, a block's share of each, and the ring of weights, keys and
// values.
#pragma once

#include "backend/cuda/chain/attend.cuh"
#include "backend/cuda/chain/route.cuh"
#include "backend/cuda/chain/scan.cuh"

namespace mr::cuda {

namespace {

constexpr int kPiece = 1024;  // inputs per stage
constexpr int kShare = kPiece / kWarps;
constexpr int kRows = 16;                                                            // per stage: even ones, then odd ones in other banks
constexpr int kOdd = kRows / 2 * kPiece * 2 + 64, kStage = kRows * kPiece * 2 + 64;  // bytes
constexpr int kLeastStages = 4, kMostStages = 6, kSlots = 2;                         // kSlots: tiles whose sums await the epilogue
constexpr int kThreads = 32 * (kWarps + 2);
static_assert(kWorkers == kScanWorkers);
constexpr int kMostShared = 227 << 10;
static_assert(kStage >= kTiles * 2 * kTile * 128 * 2 && kInFlight <= kLeastStages);

__device__ int row_at(int row) { return row % 2 * kOdd + row / 2 * kPiece * 2; }  // in a stage

struct Program {
  const ChainStep* step;
  int n, stages;
  ChainMemory memory;
};

using Kind = ChainStep::Kind;
// Mixed: the program has more than plain products and attentions.
template <bool Mixed>
__device__ bool multiplies(const ChainStep& s) {
  return s.kind == Kind::product || (Mixed && s.kind == Kind::experts);
}
template <bool Mixed>
__device__ const Product& product_of(const ChainStep& s) {
  return Mixed && s.kind == Kind::experts ? s.experts.product : s.product;
}
template <bool Mixed>
__device__ int parts_of(const ChainStep& s) {
  return Mixed && s.kind == Kind::experts && !s.experts.product.gated ? s.experts.k : 1;
}

// A block's share of a step. Of a product: outputs [begin, end), `per` in each tile of rows but the last. Of a scan: slices or
// channels [begin, end). Of an attention: a part of the only sequence.
struct Share : Part {
  int per;
};

// Whether the workers pass sums to the epilogue, which implies that all of them have started the step. Not if the block has no outputs.
template <bool Mixed>
__device__ bool leaves_sums(const ChainStep& s, const Share& mine) {
  return multiplies<Mixed>(s) && mine.begin < mine.end;
}

struct Shared {
  ChainStep step[kSteps];
  Share share[kSteps];
  uint64_t step_full[kSteps], step_empty[kSteps], share_full[kSteps];
  uint64_t full[kMostStages], empty[kMostStages];
  uint64_t sums_full[kSlots], sums_empty[kSlots];
  uint64_t go, worked, routed;  // a step's inputs are ready; workers are done (steps without epilogue); experts are chosen
  float sums[kSlots][kWarps][kRows];
  Softmaxes softmaxes;
  Chosen choice;
};

// Outputs per tile: in a gated one, row 8 + i is the up row of output i.
__device__ int lanes_of(const Product& p) { return p.gated ? kRows / 2 : kRows; }

// This block's part of n, split evenly among the blocks.
__device__ Share part_of(int64_t n, int step) {
  const int64_t rank = rank_at(step);
  Share s{};
  s.begin = int(rank * n / gridDim.x);
  s.end = int((rank + 1) * n / gridDim.x);
  return s;
}
template <bool Mixed>
__device__ Share share_of(const Product& p, int step) {
  Share s = part_of(p.gated ? p.out / 2 : p.out, step);
  const int n = s.end - s.begin, most = lanes_of(p), tiles = max((n + most - 1) / most, 1);
  s.per = Mixed ? max((n + tiles - 1) / tiles, 1) : most;
  return s;
}
__device__ Share share_of(const AttendCall& c, int step) {
  const int kv_heads = c.pages.kv_heads, rank = rank_at(step), context = *c.spots.context;
  Share s{};
  s.begin = c.window ? max(0, context + 1 - c.window) : 0;
  s.end = context + 1;
  s.context = context;
  const int first = s.begin / kTile, tiles = context / kTile + 1 - first, most = int(gridDim.x) / kv_heads;
  const int parts = min(most, (tiles + kTiles - 1) / kTiles), per = (tiles + parts - 1) / parts, n = (tiles + per - 1) / per;
  s.kv_head = rank % kv_heads;
  s.index = s.slot = rank / kv_heads;
  if (s.index >= n) return s;
  s.count = n;
  s.first_tile = first + s.index * per;
  s.n_tiles = min(per, tiles - s.index * per);
  s.table = *c.pages.begin;
  s.newest = s.index == n - 1;
  if (s.newest) s.stored = place_of(c.pages, s.table, s.kv_head, context);
  return s;
}

template <bool Mixed>
__device__ Share share_of(const ChainStep& s, int step) {
  if (!Mixed) return s.attends() ? share_of(s.attend, step) : share_of<false>(s.product, step);
  switch (s.kind) {
    case Kind::product:
    case Kind::experts:
      return share_of<Mixed>(product_of<Mixed>(s), step);
    case Kind::attend:
      return share_of(s.attend, step);
    case Kind::outer:
      return part_of(s.outer.shape.heads * (s.outer.shape.head_dim / kScanPart), step);
    case Kind::select:
      return part_of(s.select.call.rows.x.cols, step);
    case Kind::route:
      return part_of(s.route.call.x.cols, step);
  }
  return {};
}

}  // namespace

}  // namespace mr::cuda
