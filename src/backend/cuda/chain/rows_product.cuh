// Shared state of the warps of rows.cu's blocks, and its products.
//
// Fixed: the products of deterministic mode, whose sums are those of product(). Parts of the inputs come in pairs, with stages of the
// two alternating, and each warpgroup computes one of the two.
#pragma once

#include "backend/cuda/chain/rows.h"
#include "backend/cuda/chain/spans.cuh"
#include "backend/cuda/rows/half_norm.cuh"

namespace mr::cuda {

namespace {

constexpr int kChunk = 64, kBox = 8 * kChunk * 2;             // inputs; bytes of a box of one chunk
constexpr int kStageBoxes = 32, kStage = kStageBoxes * kBox;  // of one chunk each
constexpr int kMostBoxes = 16, kMostChunks = 8;               // per pass; per stage
constexpr int kStages = 5, kRoom = 3 * 2 * kMostChunks * kBox;
constexpr int kThreads = 32 * (kWarps + 3);
constexpr int kParts = 2;  // parts of attentions in shared memory
static_assert(kStage >= kTiles * 2 * kTile * 128 * 2 && kStage >= SpanStage<128>::bytes && kRoom >= sizeof(SpanRoom<128>));

struct Shared {
  RowsWork work[kSteps];
  uint64_t step_full[kSteps], step_empty[kSteps];
  uint64_t full[kStages], empty[kStages];
  uint64_t x_full[2 * 3], x_empty[2 * 3];
  uint64_t go, factors;  // a step's inputs are ready; its norm factors are ready
  float factor[kChainRows];
  Part part[kParts];
  uint64_t part_full[kParts], part_empty[kParts];
  Softmaxes softmaxes;
};

// The ring of x for N rows; a stage holds the step's chunks. A pass's sums reuse the end of its memory: the x of a product of several
// passes does not extend that far, and with one pass it has been read by then.
template <int N>
struct XRing {
  static constexpr int stages = kRoom / (N / 8 * kMostChunks * kBox);
  __device__ static int stage(int chunks) { return N / 8 * chunks * kBox; }
};
constexpr int kSums = 2 * kChainRows * 68 * 4, kSumsAt = kRoom - kSums;

struct Units {  // of eight outputs
  int begin, end, per;
};
__device__ Units units_of(const RowsWork& work, int step) {
  const Product& p = work.step.product;
  const int n = int(p.gated ? p.out / 16 : p.out / 8) / work.unit, rank = rank_at(step);
  return {int(int64_t(rank) * n / gridDim.x) * work.unit, int(int64_t(rank + 1) * n / gridDim.x) * work.unit,
          p.gated ? work.boxes / 2 : work.boxes};
}

// Calls f(first chunk, number of valid chunks, part) for the stages of a pass, in order.
template <bool Fixed, class F>
__device__ void each_stage(const RowsWork& work, F f) {
  const int n = __shfl_sync(~0u, int(work.step.product.in / kChunk), 0), chunks = __shfl_sync(~0u, work.chunks, 0);
  if constexpr (!Fixed) {
#pragma unroll 1
    for (int chunk = 0; chunk < n; chunk += chunks) f(chunk, chunks, 0);
  } else {
    const int split = __shfl_sync(~0u, work.split, 0), size = __shfl_sync(~0u, work.part, 0);
#pragma unroll 1
    for (int first = 0; first < split; first += 2)
#pragma unroll 1
      for (int from = 0; from < size; from += chunks)
#pragma unroll 1
        for (int part = first; part < min(first + 2, split); part++) {
          const int left = min(size, n - part * size) - from;
          if (left > 0) f(part * size + from, min(left, chunks), part);
        }
  }
}

// Copies a product's weights.
template <bool Fixed>
__device__ void fetch(Shared& shared, uint32_t ring, const CUtensorMap& map, const RowsWork& work, int step, Fetching& fetching) {
  const Product& p = work.step.product;
  const Units mine = units_of(work, step);
  const int lane = threadIdx.x % 32, chunks = work.chunks, half = int(p.out / 2);
  const bool gated = p.gated;
  for (int pass = 0; pass < work.passes; pass++) {
    const int first = mine.begin + pass * mine.per, boxes = max(0, min(mine.per, mine.end - first)) * (gated ? 2 : 1);
    const int row = gated ? lane % 2 * half + (first + lane / 2) * 8 : (first + lane) * 8;
    each_stage<Fixed>(work, [&](int chunk, int, int) {
      fetching.begin(shared.full, shared.empty, kStages, boxes * chunks * kBox);
      if (lane < boxes)
        copy_box(ring + fetching.turn.at * kStage + lane * chunks * kBox, map, 0, row, chunk, &shared.full[fetching.turn.at], kReadOnce);
      fetching.turn.next(kStages);
    });
  }
}

// Copies x, which must be complete.
template <int N, bool Fixed>
__device__ void fetch_x(Shared& shared, uint32_t ring, const CUtensorMap& map, const RowsWork& work, Turn& turn) {
  using X = XRing<N>;
  const int lane = threadIdx.x % 32, chunks = work.chunks;
  for (int pass = 0; pass < work.passes; pass++)
    each_stage<Fixed>(work, [&](int chunk, int, int) {
      barrier_wait(&shared.x_empty[turn.at], turn.parity ^ 1);
      if (lane == 0) barrier_expect(&shared.x_full[turn.at], N / 8 * chunks * kBox);
      __syncwarp();
      if (lane < N / 8)
        copy_box(ring + turn.at * X::stage(chunks) + lane * chunks * kBox, map, 0, lane * 8, chunk, &shared.x_full[turn.at], kReadAgain);
      turn.next(X::stages);
    });
}

// Boxes of eight rows are consecutive, each with all chunks of a stage. Loop bounds around wgmma pass through __shfl_sync so that the
// compiler knows they are warp-uniform; otherwise it serializes the instructions.
__device__ uint64_t boxes_descriptor(uint32_t address, int chunks) {
  return uint64_t((address & 0x3ffff) >> 4) | uint64_t(1) << 16 | uint64_t(chunks * kBox >> 4) << 32 | uint64_t(1) << 62;
}

// A thread's accumulators of a pass; if its warpgroup has two parts of the inputs, `before` has those of the first.
template <int N>
struct Summed {
  float d[N / 2] = {}, before[N / 2] = {};
};

// One pass of a product. With more than 64 weight rows each warpgroup has half of them, else half of the inputs.
template <int N, bool Fixed>
__device__ void multiply(Shared& shared, uint32_t ring, uint32_t x_ring, const RowsWork& work, bool halves, Summed<N>& sums, Turn& turn,
                         Turn& x_turn) {
  using X = XRing<N>;
  const int group = __shfl_sync(~0u, threadIdx.x / 128, 0), lane = threadIdx.x % 32;
  const int chunks = __shfl_sync(~0u, work.chunks, 0), apart = !Fixed && halves ? 2 : 1;
  const int first = apart == 2 ? group : 0, rows = halves ? 0 : group * 8 * chunks * kBox;
  float(&d)[N / 2] = sums.d;
  each_stage<Fixed>(work, [&](int chunk, int n, int part) {
    barrier_wait(&shared.full[turn.at], turn.parity);
    barrier_wait(&shared.x_full[x_turn.at], x_turn.parity);
    const int end = !Fixed ? n : __shfl_sync(~0u, !halves || part % 2 == group ? n : 0, 0);
    if constexpr (Fixed) {
      const bool second = part >= 2 && chunk == part * work.part && end > 0;  // the group's second part begins
#pragma unroll
      for (int e = 0; e < N / 2; e++) {
        sums.before[e] = second ? d[e] : sums.before[e];
        d[e] = second ? 0 : d[e];
      }
    }
    uint64_t a = boxes_descriptor(ring + turn.at * kStage + rows + first * kBox, chunks);
    uint64_t b = boxes_descriptor(x_ring + x_turn.at * X::stage(chunks) + first * kBox, chunks);
    settle(d);
    wgmma_begin();
#pragma unroll 1
    for (int j = first; j < end; j += apart, a += apart * kBox >> 4, b += apart * kBox >> 4) {
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
    turn.next(kStages);
    x_turn.next(X::stages);
  });
}

// Sums of a pass in shared memory: [N][pitch], for parts of the inputs one after the other.
template <int N, bool Fixed>
struct PassSums {
  float* data;
  bool halves;
  int parts;  // Fixed: of the inputs
  __device__ PassSums(char* room, const RowsWork& work)
      : data(reinterpret_cast<float*>(room + kSumsAt)), halves(__shfl_sync(~0u, work.boxes, 0) <= 8), parts(work.split) {
    if (Fixed && halves) data = reinterpret_cast<float*>(room + kRoom - 2 * kSums);
  }
  __device__ int pitch() const { return halves ? 68 : 132; }  // avoids bank conflicts
  __device__ void put(const float (&d)[N / 2], int part) {
    const int group = threadIdx.x / 128, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    float* to = data + (halves ? part * N * pitch() : group * 64) + threadIdx.x / 32 % 4 * 16 + g + 2 * t * pitch();
#pragma unroll
    for (int e = 0; e < N / 2; e++) to[(e / 4 * 8 + e % 2) * pitch() + (e & 2 ? 8 : 0)] = d[e];
  }
  __device__ void leave(const Summed<N>& sums) {
    const int group = threadIdx.x / 128;
    const bool two = Fixed && halves && parts > 2;
    workers_meet();  // the memory is free
    if (two) put(sums.before, group);
    put(sums.d, two ? 2 + group : group);
    workers_meet();
  }
  __device__ float at(int row, int place) const {
    const float* from = data + row * pitch() + place;
    if (!halves) return from[0];
    if (!Fixed) return from[0] + from[N * pitch()];
    float sum = 0;
    for (int part = 0; part < parts; part++) sum += from[part * N * pitch()];
    return sum;
  }
};

// Epilogue of a pass: a warp has rows `warp` and warp + 8 of x, a lane every 32nd output.
struct Finish {
  const Product& p;
  int first, n;  // outputs of the pass
  float residual[2] = {}, squares[2] = {}, bias, weight;

  __device__ void prefetch() {  // prefetches the inputs of the first 32 outputs
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
  template <int N, bool Fixed>
  __device__ void finish(const PassSums<N, Fixed>& sums, const float* factor) {
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
        const float by = p.squares ? factor[row] : 1.0f;
        float y = 0;
        if constexpr (Fixed) {  // rounds as product() does
          const float sum = __fmul_rn(sums.at(row, place), by);
          y = __fmul_rn(sum + bias, p.scale);
          if (p.gated) y = activated(p.activation, sum) * __fmul_rn(sums.at(row, place + 8), by);
        } else {
          const float sum = sums.at(row, place) * by;
          y = (sum + bias) * p.scale;
          if (p.gated) y = activated(p.activation, sum) * (sums.at(row, place + 8) * by);
        }
        if (p.residual) y += o < 32 ? residual[h] : residual_at(o, row);
        store(p.y.data, p.y.dtype, row * p.y.stride + at, y);
        if (p.next.x) put_half(p.next, row * p.out + at, y, weight);
        if (!Fixed) squares[h] += y * y;
        if (Fixed && p.next.x) put_fixed_squares(p.next, row, at, y);  // n is a multiple of kFixedPart
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

template <int N, bool Fixed>
__device__ void run_product(Shared& shared, uint32_t ring, char* room, const RowsWork& work, int step, const Units& mine, Turn& turn,
                            Turn& x_turn) {
  const Product& p = work.step.product;
  PassSums<N, Fixed> sums(room, work);
  Finish outputs{p};
  for (int pass = 0; pass < work.passes; pass++) {
    const int first = mine.begin + pass * mine.per;
    outputs.first = first * 8;
    outputs.n = max(0, min(mine.per, mine.end - first)) * 8;
    outputs.prefetch();
    Summed<N> own;
    multiply<N, Fixed>(shared, ring, shared_address(room), work, sums.halves, own, turn, x_turn);
    sums.leave(own);
    barrier_wait(&shared.factors, step & 1);
    outputs.finish(sums, shared.factor);
  }
  if (!Fixed && p.next.x) outputs.write_squares();
}

}  // namespace

}  // namespace mr::cuda
