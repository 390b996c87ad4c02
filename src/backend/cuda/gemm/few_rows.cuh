// Products of up to 64 rows at a time with weights as rows of bf16 or packed (layout: packed.cu). A block computes one or two tiles
// of 16 outputs; its warps split the inputs, each with a separate ring in shared memory, and their sums are added in order: a row's
// bits depend only on the weight's shape. Quants convert to bf16 exactly, a block of 32 inputs is summed by mma against bf16
// activations, and scaled in f32. With Groups, the rows of x are those routed to one expert, whose weight the block reads.
#pragma once

#include <algorithm>

#include "backend/cuda/device/device.cuh"
#include "backend/cuda/gemm/gemm.h"

namespace mr::cuda {

inline constexpr int kRing = 4;  // chunks in flight per warp

template <Packing F>
struct Form {
  static constexpr bool plain = F == Packing::bf16, offset = F == Packing::q4_1;
  static constexpr int blocks = plain || F == Packing::q8_0 ? 1 : 2, inputs = blocks * 32;  // of a chunk
  static constexpr int header = plain ? 0 : blocks * (offset ? 8 : 4);                      // bytes of scales of a chunk for each g
  static constexpr int bytes = plain ? 1024 : 512 + 32 * header;                            // of a chunk in a ring
};

// (row of x, expert) pairs, k per row, grouped by expert.
struct Groups {
  const Packed* experts = nullptr;  // [n_experts]
  const Packed* ups = nullptr;      // up projections of a gated product
  const int32_t* expert = nullptr;  // of pair p: at p / k * stride + p % k
  int64_t stride = 0;
  int k = 1, n_pairs = 0, n_experts = 0;
  bool of_pairs = false;            // x has one row per pair, not one per k pairs
  const GroupTile* tile = nullptr;  // [n_tiles], from group_kernel; null: each block finds its own group
  const int32_t *n_tiles = nullptr, *pairs = nullptr;
  __device__ int of(int pair) const { return min(max(expert[pair / k * stride + pair % k], 0), n_experts - 1); }
};

// The y-th group of at most `most` pairs, by ascending experts and pairs: its expert, or -1. `counts`: scratch [n_experts].
__device__ inline int find_group(const Groups& g, int y, int most, int* list, int& n, int* counts) {
  __shared__ int found, size;
  if (g.tile) {
    if (y >= *g.n_tiles) return -1;
    const GroupTile tile = g.tile[y];
    for (int i = threadIdx.x; i < tile.n; i += blockDim.x) list[i] = g.pairs[tile.first + i];
    __syncthreads();
    n = tile.n;
    return tile.expert;
  }
  if (g.n_pairs <= 32) {  // each warp independently, one pair per lane; groups in the order of their first pairs
    const int lane = threadIdx.x % 32, id = lane < g.n_pairs ? g.of(lane) : -1 - lane;
    unsigned same = __match_any_sync(~0u, id);
    const int mine = lane < g.n_pairs && (same & ((1u << lane) - 1)) == 0 ? (__popc(same) + most - 1) / most : 0;
    int up_to = mine;
    for (int d = 1; d < 32; d *= 2) {
      const int other = __shfl_up_sync(~0u, up_to, d);
      if (lane >= d) up_to += other;
    }
    const unsigned here = __ballot_sync(~0u, up_to > y);
    if (!here) return -1;
    const int at = __ffs(int(here)) - 1, part = y - __shfl_sync(~0u, up_to - mine, at), expert = __shfl_sync(~0u, id, at);
    same = __shfl_sync(~0u, same, at);
    const int rank = __popc(same & ((1u << lane) - 1)) - part * most;
    if ((same >> lane & 1) && rank >= 0 && rank < most) list[rank] = lane;  // all warps write the same
    __syncwarp();
    n = min(__popc(same) - part * most, most);
    return expert;
  }
  for (int e = threadIdx.x; e < g.n_experts; e += blockDim.x) counts[e] = 0;
  __syncthreads();
  for (int p = threadIdx.x; p < g.n_pairs; p += blockDim.x) atomicAdd(&counts[g.of(p)], 1);
  __syncthreads();
  if (threadIdx.x < 32) {
    const int lane = threadIdx.x;
    int expert = -1, part = y;
    for (int base = 0; base < g.n_experts && expert < 0; base += 32) {
      const int mine = base + lane < g.n_experts ? (counts[base + lane] + most - 1) / most : 0;
      int up_to = mine;
      for (int d = 1; d < 32; d *= 2) {
        const int other = __shfl_up_sync(~0u, up_to, d);
        if (lane >= d) up_to += other;
      }
      const unsigned here = __ballot_sync(~0u, up_to > part);
      if (here) {
        const int at = __ffs(int(here)) - 1;
        expert = base + at;
        part -= __shfl_sync(~0u, up_to - mine, at);
      } else {
        part -= __shfl_sync(~0u, up_to, 31);
      }
    }
    int before = 0;
    for (int base = 0; base < g.n_pairs && expert >= 0; base += 32) {
      const int p = base + lane;
      const bool hit = p < g.n_pairs && g.of(p) == expert;
      const unsigned all = __ballot_sync(~0u, hit);
      const int rank = before + __popc(all & ((1u << lane) - 1)) - part * most;
      if (hit && rank >= 0 && rank < most) list[rank] = p;
      before += __popc(all);
    }
    if (lane == 0) {
      found = expert;
      size = min(before - part * most, most);
    }
  }
  __syncthreads();
  n = size;
  return found;
}

// Two bf16 values: pair `i` (of four) of 8 inputs.
template <Packing F>
__device__ uint32_t pair_of(const uint32_t* words, int i) {
  auto minus = [](uint32_t a, uint32_t b) {
    __nv_bfloat162 d = __hsub2(reinterpret_cast<__nv_bfloat162&>(a), reinterpret_cast<__nv_bfloat162&>(b));
    return reinterpret_cast<uint32_t&>(d);
  };
  if constexpr (F == Packing::bf16) {
    return words[i];
  } else if constexpr (F == Packing::q8_0) {
    const uint32_t w = words[i / 2] >> (i % 2 * 8);
    return minus((w & 0x007f007f) | 0x43004300, (w & 0x00800080) | 0x43004300);  // 128 + low bits, less 128 or 256
  } else {
    const uint32_t w = ((words[0] >> (4 * i)) & 0x000f000f) | 0x43004300;  // 128 + value
    return F == Packing::q4_0 ? minus(w, 0x43084308) : w;
  }
}
// Index of the first word of a row's inputs of block b among a lane's words.
template <Packing F>
__device__ constexpr int first_word(int b, int h) {
  return F == Packing::bf16 ? 0 : F == Packing::q8_0 ? 2 * h : 2 * b + h;
}
// Constant that pair_of() leaves added to every value.
template <Packing F>
__device__ constexpr float added() {
  return F == Packing::q4_1 ? 128 : 0;
}

__device__ inline float f16(uint32_t bits) { return __half2float(__ushort_as_half(uint16_t(bits))); }

// mma() from zero and accumulating; not volatile, so that the compiler may interleave independent ones.
__device__ inline void mma_first(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
      : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f));
}
__device__ inline void mma_more(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Async copy to shared memory, in the thread's current group; writes zeros unless `there`.
template <int Bytes>
__device__ inline void copy(void* to, const void* from, bool there = true) {
  const uint32_t at = uint32_t(__cvta_generic_to_shared(to));
  if constexpr (Bytes == 16) {
    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(there ? 16 : 0) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global.L2::256B [%0], [%1], %2;" ::"r"(at), "l"(from), "n"(Bytes) : "memory");
  }
}
__device__ inline void end_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int Left>
__device__ void wait_groups() {  // until at most Left are in flight
  asm volatile("cp.async.wait_group %0;" ::"n"(Left) : "memory");
}

// A tile's scales of one lane.
template <Packing F>
__device__ void load_header(uint32_t (&header)[4], const char* from) {
  if constexpr (Form<F>::header == 16) {
    const uint4 v = *reinterpret_cast<const uint4*>(from);
    header[0] = v.x;
    header[1] = v.y;
    header[2] = v.z;
    header[3] = v.w;
  } else if constexpr (Form<F>::header == 8) {
    const uint2 v = *reinterpret_cast<const uint2*>(from);
    header[0] = v.x;
    header[1] = v.y;
  } else if constexpr (Form<F>::header == 4) {
    header[0] = *reinterpret_cast<const uint32_t*>(from);
  }
}

// Two consecutive pieces of 16 weights, as bf16, with the scales of their rows: the A operands of two mma.
template <Packing F>
struct Left {
  using Of = Form<F>;
  uint32_t a[2][4];
  [[maybe_unused]] float scale[2], more[2];

  // Block b of a chunk.
  __device__ void load(const uint4 (&words)[Of::plain ? 2 : 1], const uint32_t (&header)[4], int b) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const uint4 all = words[Of::plain ? h : 0];
      const uint32_t word[4] = {all.x, all.y, all.z, all.w};
#pragma unroll
      for (int i = 0; i < 4; i++) a[i / 2][i % 2 * 2 + h] = pair_of<F>(word + first_word<F>(b, h), i);
      if constexpr (!Of::plain) {
        const int at = 2 * b + h;
        const uint32_t pair = header[Of::offset ? at : at / 2];
        scale[h] = f16(Of::offset || at % 2 == 0 ? pair : pair >> 16);
        more[h] = Of::offset ? f16(pair >> 16) - added<F>() * scale[h] : 0;
      }
    }
  }
};

// N: rows of x / 8; Tiles: per block, two if gated. A lane reads only the part of its warp's ring that it copied itself.
template <Packing F, int N, int Tiles, int Warps, bool Grouped>
struct FewRows {
  using Of = Form<F>;
  static constexpr int x_ahead = N <= 2 || (N == 3 && Of::plain) ? 2 : 1, pitch = Tiles * 16 + 1;
  const Product& p;
  const Packed& w;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int n_chunks = int((w.in + Of::inputs - 1) / Of::inputs), per = (n_chunks + Warps - 1) / Warps;
  const int begin = warp * per, end = min(begin + per, n_chunks);
  const int64_t first = p.gated ? blockIdx.x : int64_t(blockIdx.x) * Tiles;  // tile
  char* ring;                                                                // this warp's
  const char *quants[Tiles][2], *scales[Tiles];                              // of the next chunk to copy; [2]: rows g and g + 8
  const bf16* x[N];
  uint4 in[x_ahead][Of::blocks][N];
  float total[Tiles][N][4] = {};

  // up: an expert's up projection.
  __device__ FewRows(const Product& product, const Packed& weight, const Packed& up, char* shared)
      : p(product), w(weight), ring(shared + warp * kRing * Tiles * Of::bytes) {
    const int64_t last = (w.out + 15) / 16 - 1;
    const bool two = Grouped && p.gated;  // weights
    const int64_t second = two ? first : min(p.gated ? first + w.out / 32 : first + 1, last);
#pragma unroll
    for (int m = 0; m < Tiles; m++) {
      const int64_t tile = m ? second : first, at = tile * n_chunks + begin;
      const char *quants_at = static_cast<const char*>(m && two ? up.quants : w.quants),
                 *scales_at = static_cast<const char*>(m && two ? up.scales : w.scales);
      if constexpr (Of::plain) {
#pragma unroll
        for (int h = 0; h < 2; h++) quants[m][h] = quants_at + (min(tile * 16 + g + 8 * h, w.out - 1) * w.in + begin * 32 + 8 * t) * 2;
      } else {
        quants[m][0] = quants_at + (at * 32 + lane) * 16;
        scales[m] = scales_at + (at * 8 + g) * Of::header;
      }
    }
  }
  __device__ void fetch(int slot, int chunk) {
    if (chunk < end) {
#pragma unroll
      for (int m = 0; m < Tiles; m++) {
        char* to = ring + (slot * Tiles + m) * Of::bytes + lane * 16;
        if constexpr (Of::plain) {
          const bool there = chunk * 32 + 8 * t < w.in;
#pragma unroll
          for (int h = 0; h < 2; h++) {
            copy<16>(to + 512 * h, there ? quants[m][h] : static_cast<const char*>(w.quants), there);
            quants[m][h] += 64;
          }
        } else {
          copy<16>(to, quants[m][0]);
          quants[m][0] += 512;
          copy<Of::header>(to + 512 + lane * (Of::header - 16), scales[m]);
          scales[m] += 8 * Of::header;
        }
      }
    }
    end_group();
  }
  template <class RowOf>  // row_of(column): of x
  __device__ void begin_x(RowOf row_of) {
#pragma unroll
    for (int n = 0; n < N; n++) x[n] = static_cast<const bf16*>(p.x.data) + row_of(n * 8 + g) * p.x.stride + 8 * t + begin * Of::inputs;
  }
  __device__ void load_x(int slot, int chunk) {  // in order; any address will do beyond the end, where weights are zero
    const int left = int(w.in) - chunk * Of::inputs;
#pragma unroll
    for (int b = 0; b < Of::blocks; b++) {
      const int on = Of::plain ? min(0, left - 8 - 8 * t) : left > b * 32 ? b * 32 : 0;
#pragma unroll
      for (int n = 0; n < N; n++) in[slot][b][n] = *reinterpret_cast<const uint4*>(x[n] + on);
    }
#pragma unroll
    for (int n = 0; n < N; n++) x[n] += Of::inputs;
  }
  // The sums of a block of x, for weights that have a minimum: an mma with ones as A.
  __device__ void sum_x(float (&of_x)[N][4], int x_slot, int b) const {
    if constexpr (Of::offset) {
#pragma unroll
      for (int n = 0; n < N; n++) {
        const uint4 v = in[x_slot][b][n];
        constexpr uint32_t one[4] = {0x3f803f80, 0x3f803f80, 0x3f803f80, 0x3f803f80};
        mma_first(of_x[n], one, v.x, v.y);
        mma_more(of_x[n], one, v.z, v.w);
      }
    }
  }
  __device__ void multiply(int slot, int x_slot) {
    const char* here = ring + slot * Tiles * Of::bytes;
    uint4 words[Tiles][Of::plain ? 2 : 1];
    [[maybe_unused]] uint32_t header[Tiles][4];
#pragma unroll
    for (int m = 0; m < Tiles; m++) {
      const char* from = here + m * Of::bytes;
      words[m][0] = *reinterpret_cast<const uint4*>(from + lane * 16);
      if constexpr (Of::plain) words[m][1] = *reinterpret_cast<const uint4*>(from + 512 + lane * 16);
      from += 512 + lane * Of::header;
      if constexpr (!Of::plain) load_header<F>(header[m], from);
    }
#pragma unroll
    for (int b = 0; b < Of::blocks; b++) {
      [[maybe_unused]] float of_x[N][4];
      sum_x(of_x, x_slot, b);
#pragma unroll
      for (int m = 0; m < Tiles; m++) {
        Left<F> left;
        left.load(words[m], header[m], b);
#pragma unroll
        for (int n = 0; n < N; n++) {
          const uint4 v = in[x_slot][b][n];
          if constexpr (Of::plain) {
            mma_more(total[m][n], left.a[0], v.x, v.y);
            mma_more(total[m][n], left.a[1], v.z, v.w);
            continue;
          }
          float sum[4];
          mma_first(sum, left.a[0], v.x, v.y);
          mma_more(sum, left.a[1], v.z, v.w);
#pragma unroll
          for (int e = 0; e < 4; e++) {
            total[m][n][e] = fmaf(left.scale[e / 2], sum[e], total[m][n][e]);
            if constexpr (Of::offset) total[m][n][e] = fmaf(left.more[e / 2], of_x[n][e], total[m][n][e]);
          }
        }
      }
    }
  }
  __device__ void run() {
#pragma unroll
    for (int i = 0; i + 1 < x_ahead; i++)
      if (begin + i < end) load_x(i, begin + i);
    for (int c = begin; c < end; c += kRing) {
#pragma unroll
      for (int i = 0; i < kRing; i++) {
        if (c + i >= end) break;
        if (c + i + x_ahead - 1 < end) load_x((i + x_ahead - 1) % x_ahead, c + i + x_ahead - 1);
        wait_groups<kRing - 1>();
        multiply(i, i % x_ahead);
        fetch(i, c + i + kRing);
      }
    }
  }
  __device__ void leave(float* sums) const {  // [Warps][8 N][pitch]
#pragma unroll
    for (int m = 0; m < Tiles; m++)
#pragma unroll
      for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
          const int row = m * 16 + g + (e & 2 ? 8 : 0), col = n * 8 + 2 * t + e % 2;
          sums[(warp * 8 * N + col) * pitch + row] = total[m][n][e];
        }
  }
};

template <Packing F, int N, int Tiles, int Warps, bool Grouped>
__global__ void __launch_bounds__(Warps * 32, N > 4         ? 1
                                              : N > 2       ? (F == Packing::bf16 && Grouped ? 2 : 1)
                                              : Warps == 16 ? (N == 1 && Tiles == 1 ? 2 : 1)
                                              : N == 1      ? 3
                                                            : 2) few_rows_kernel(const Product p, Packed w, const Groups groups) {
  using Rows = FewRows<F, N, Tiles, Warps, Grouped>;
  extern __shared__ char shared[];  // the rings, reused for the sums
  [[maybe_unused]] __shared__ int pairs[Grouped ? 8 * N : 1];
  int row0 = blockIdx.y * N * 8, n_cols = min(8 * N, int(p.x.rows) - row0);  // of x
  Packed up;
  if constexpr (Grouped) {
    launch_next();
    wait_before();
    const int expert = find_group(groups, blockIdx.y, 8 * N, pairs, n_cols, reinterpret_cast<int*>(shared));
    if (expert < 0) return;
    w.quants = groups.experts[expert].quants;
    w.scales = groups.experts[expert].scales;
    if (p.gated) up = groups.ups[expert];
  }
  Rows rows(p, w, up, shared);
#pragma unroll
  for (int i = 0; i < kRing; i++) rows.fetch(i, rows.begin + i);
  if (!Grouped) {
    launch_next();
    wait_before();
  }
  rows.begin_x([&](int col) -> int64_t {
    col = min(col, n_cols - 1);
    return Grouped ? (groups.of_pairs ? pairs[col] : pairs[col] / groups.k) : row0 + col;
  });
  rows.run();
  __syncthreads();
  float* sums = reinterpret_cast<float*>(shared);
  rows.leave(sums);
  __syncthreads();

  const int width = p.gated ? 16 : Tiles * 16;
  for (int e = threadIdx.x; e < width * n_cols; e += (Warps * 32)) {
    const int row = e % width, col = e / width;
    auto sum_of = [&](int r) {
      float sum = 0;
      for (int k = 0; k < Warps; k++) sum += sums[(k * 8 * N + col) * Rows::pitch + r];
      return sum;
    };
    const int64_t out = rows.first * 16 + row, to = Grouped ? pairs[col] : row0 + col;
    if (p.gated) {
      store(p.y.data, p.y.dtype, to * p.y.stride + out, activated(p.activation, sum_of(row)) * sum_of(16 + row));
    } else if (out < w.out) {
      float sum = sum_of(row);
      if (p.bias) sum += p.bias[out];
      sum *= p.scale;
      if (p.residual) sum += p.residual[to * p.residual_stride + out];
      store(p.y.data, p.y.dtype, to * p.y.stride + out, sum);
    }
  }
}

template <Packing F, int N, int Tiles, int Warps, bool Grouped>
void few_rows(const Launch& at, const Product& p, const Packed& w, int64_t n_groups, const Groups& groups = {}) {
  const size_t shared = size_t(Warps) * std::max(kRing * Tiles * Form<F>::bytes, 8 * N * (Tiles * 16 + 1) * 4);
  const int64_t tiles = div_up(w.out, 16);
  launch(at, few_rows_kernel<F, N, Tiles, Warps, Grouped>,
         grid2(!p.gated  ? div_up(tiles, Tiles)
               : Grouped ? tiles
                         : tiles / 2,
               n_groups),
         Warps * 32, shared, p, w, groups);
}

template <class Work>
void by_packing(Packing packing, Work work) {
  if (packing == Packing::q8_0) return work(std::integral_constant<Packing, Packing::q8_0>{});
  if (packing == Packing::q4_0) return work(std::integral_constant<Packing, Packing::q4_0>{});
  work(std::integral_constant<Packing, Packing::q4_1>{});
}

}  // namespace mr::cuda
