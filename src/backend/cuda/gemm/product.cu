// Products of up to 128 rows with a bf16 weight. A block streams a tile of M weight rows, or its share of their inputs, and N rows
// of x through a ring in shared memory (bulk tensor copies by a producer thread) and multiplies with wgmma, the weights as A.
// A cluster is `pair` tiles, which share x by multicast, times `split` parts of the inputs, whose sums are added in order
// through distributed shared memory; with split 1 a cluster is persistent and processes tiles through the same ring. A kernel
// lets the next one start when it has issued its last weight copies; that one then prefetches its first ring of weights during this
// one's epilogues. Gated weights alternate in the ring, eight gate rows and eight up rows, so that one thread has both of an output.
// Reads out * in * 2 bytes of weights once per N rows, and x from L2 once per `pair` tiles.
#include <cooperative_groups.h>

#include <algorithm>

#include "backend/cuda/device/tensor_map.cuh"
#include "backend/cuda/device/wgmma.cuh"
#include "backend/cuda/gemm/norm_factors.cuh"
#include "backend/cuda/rows/half_norm.cuh"

namespace mr::cuda {

namespace {

namespace cg = cooperative_groups;

constexpr int kChunk = 64;  // inputs per stage: 128 bytes
constexpr int kBand = 8;    // parts of N rows whose x stays in L2 while all weights stream through

template <int M, int N>
struct Tile {
  static constexpr int warps = M / 16, consumers = warps * 32, threads = consumers + 64;  // and a producer warp, and one for the norm
  static constexpr int weight = M * 128, x = N * 128, stage = weight + x;
  static constexpr int pitch = M + 4;  // floats per row of sums, which reuse the ring's memory
  static constexpr int sums = N * pitch * 4;
  // Sized so that a block of the next product fits on the multiprocessor beside this one.
  static constexpr int stages = M == 128 ? (N == 128 ? 3 : N == 64 ? 4 : 5) : N == 16 ? 9 : 10;
};

struct Cut {
  int pair, split, tiles, parts;  // tiles: a multiple of pair; parts: of N rows
};

template <int kThreads>
__device__ void consumers_sync() {
  asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory");
}
template <int kThreads>
__device__ void with_norm() {  // barrier of the consumers and the warp that computes the norm's factors
  asm volatile("bar.sync 2, %0;" ::"n"(kThreads + 32) : "memory");
}

// Code unrolled over registers must be short, or instruction fetch takes longer than execution: branches on the product are
// outside the loops over registers.
template <class F>
__device__ void as_type(const Matrix& y, F f) {
  y.dtype == DType::bf16 ? f(static_cast<bf16*>(y.data)) : f(static_cast<float*>(y.data));
}
__device__ void put(float* to, float x) { *to = x; }
__device__ void put(bf16* to, float x) { *to = __float2bfloat16(x); }

// Epilogue of a tile from the accumulators: lane 4 g + t has outputs g and g + 8, or gate and up of output g, of the warp's
// 16, for rows 2t and 2t + 1 of every eight.
template <int M, int N>
__device__ void finish(const Product& p, int tile, int row0, int rows, float (&d)[N / 2], const float* factor) {
  const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  auto row_of = [&](int e) { return e / 4 * 8 + 2 * t + e % 2; };
  if (p.squares) {
#pragma unroll
    for (int e = 0; e < N / 2; e++) d[e] = __fmul_rn(d[e], factor[row_of(e)]);
  }
  if (p.gated) {
    auto gate = [&](auto act) {
#pragma unroll
      for (int e = 0; e < N / 2; e++)
        if (e % 4 < 2) d[e] = act(d[e]) * d[e + 2];
    };
    if (p.activation == Activation::silu) {
      gate([](float x) { return activated(Activation::silu, x); });
    } else if (p.activation == Activation::gelu_tanh) {
      gate([](float x) { return activated(Activation::gelu_tanh, x); });
    } else {
      gate([&](float x) { return activated(p.activation, x); });
    }
  }
  const int64_t width = p.gated ? M / 2 : M, at = tile * width + (p.gated ? warp * 8 : warp * 16) + g, end = p.gated ? p.out / 2 : p.out;
  if (p.bias || p.scale != 1) {
    const float low = p.bias && at < end ? p.bias[at] : 0.0f, high = p.bias && at + 8 < end ? p.bias[at + 8] : 0.0f;
#pragma unroll
    for (int e = 0; e < N / 2; e++) d[e] = __fmul_rn(d[e] + (e % 4 < 2 ? low : high), p.scale);
  }
  auto each = [&](auto f) {
#pragma unroll
    for (int e = 0; e < N / 2; e++)
      if (row_of(e) < rows && !(e % 4 >= 2 && p.gated) && (e % 4 < 2 ? at : at + 8) < end)
        f(e, int64_t(row0 + row_of(e)), e % 4 < 2 ? at : at + 8);
  };
  if (p.residual) each([&](int e, int64_t row, int64_t at) { d[e] += p.residual[row * p.residual_stride + at]; });
  as_type(p.y, [&](auto* y) { each([&](int e, int64_t row, int64_t at) { put(y + row * p.y.stride + at, d[e]); }); });
}

// Epilogue of rows `share`, share + split, ... of a tile whose partial sums are in the blocks of a cluster. A warp takes 64 sums of a
// row at a time: outputs `lane` and lane + 32, or gate and up of one; with kBatch of these in flight.
template <int M, int N>
struct Merge {
  static constexpr int kBatch = N == 8 ? 1 : N == 16 ? 2 : 4;
  const Product& p;
  int split, share, tile, row0, rows;
  float residual[kBatch][2] = {};

  template <class F>
  __device__ void each(int batch, F f) const {
    const int warp = threadIdx.x / 32;
#pragma unroll
    for (int v = 0; v < kBatch; v++) {
      const int unit = (batch * kBatch + v) * (M / 16) + warp, row = share + split * (unit / (M / 64));
      if (row < rows) f(v, row, unit % (M / 64));
    }
  }
  __device__ int64_t output(int half, int i) const { return int64_t(tile) * M + half * 64 + i * 32 + int(threadIdx.x % 32); }
  __device__ void load(int batch) {
    if (!p.residual) return;
    each(batch, [&](int v, int row, int half) {
#pragma unroll
      for (int i = 0; i < 2; i++)
        if (output(half, i) < p.out) residual[v][i] = p.residual[(row0 + row) * p.residual_stride + output(half, i)];
    });
  }
  // sums_of(r): partial sums [N][pitch] of the r-th block of the tile.
  template <class Sums>
  __device__ void finish(const float* factor, Sums sums_of) {
    const int lane = threadIdx.x % 32, place = p.gated ? lane / 8 * 16 + lane % 8 : lane, apart = p.gated ? 8 : 32;
#pragma unroll 1
    for (int batch = 0; share + split * (batch * kBatch * (M / 16) / (M / 64)) < rows; batch++) {
      if (batch > 0) load(batch);
      float total[kBatch][2] = {};
      for (int r = 0; r < split; r++) {
        const float* sums = sums_of(r);
        each(batch, [&](int v, int row, int half) {
          const float* from = sums + row * Tile<M, N>::pitch + half * 64 + place;
          total[v][0] += from[0];
          total[v][1] += from[apart];
        });
      }
      each(batch, [&](int v, int row, int half) {
        const float by = p.squares ? factor[row] : 1;
        write(row0 + row, half, __fmul_rn(total[v][0], by), __fmul_rn(total[v][1], by), residual[v]);
      });
    }
  }
  __device__ void write(int64_t row, int half, float a, float b, const float (&residual)[2]) {
    const int lane = threadIdx.x % 32;
    if (p.gated) {
      const int64_t at = int64_t(tile) * (M / 2) + half * 32 + lane;
      if (at < p.out / 2) store(p.y.data, p.y.dtype, row * p.y.stride + at, activated(p.activation, a) * b);
      return;
    }
    float squares = 0, each_y[2] = {};
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int64_t at = output(half, i);
      if (at >= p.out) continue;
      const float y = __fmul_rn((i ? b : a) + (p.bias ? p.bias[at] : 0.0f), p.scale) + residual[i];
      store(p.y.data, p.y.dtype, row * p.y.stride + at, y);
      if (p.next.x) put_half_of(p.next, row * p.out + at, y, at);
      squares += y * y;
      each_y[i] = y;
    }
    if (!p.next.x) return;
    if (p.next.fixed) {
#pragma unroll
      for (int i = 0; i < 2; i++) put_fixed_squares(p.next, row, output(half, i), each_y[i]);
      return;
    }
    squares = warp_sum(squares);
    const int parts = int((p.out + kNormPart - 1) / kNormPart), part = tile * (M / 64) + half;
    if (lane == 0 && part < parts) put_squares(p.next, row, part, parts, squares);
  }
};

// State shared by the warps of a block: its rank in the cluster, its tiles and part of the inputs, and the ring.
template <int M, int N>
struct Block {
  using T = Tile<M, N>;
  const Product& p;
  const Cut& cut;
  uint32_t base;  // of the ring
  uint64_t *full, *empty;
  float* factor;                  // [N], norm factors of rows of x
  int size, rank, member, share;  // cluster size, rank in it; index in the pair, index among the input parts
  int begin, n;                   // chunks [begin, begin + n) of a tile
  int n_items, first, n_clusters;

  struct Place {
    int tile, row0;
  };
  __device__ Block(const Product& product, const Cut& how, uint32_t ring, uint64_t* is_full, uint64_t* is_empty, float* factors)
      : p(product), cut(how), base(ring), full(is_full), empty(is_empty), factor(factors) {
    size = cut.pair * cut.split;
    rank = int(blockIdx.x) % size;
    member = rank % cut.pair;
    share = rank / cut.pair;
    const int n_chunks = (int(p.in) + kChunk - 1) / kChunk, per = (n_chunks + cut.split - 1) / cut.split;
    begin = min(share * per, n_chunks);
    n = min(begin + per, n_chunks) - begin;
    n_items = cut.tiles / cut.pair * cut.parts;
    first = int(blockIdx.x) / size;
    n_clusters = int(gridDim.x) / size;
  }
  __device__ Place place(int item) const {
    const int in_band = kBand * (cut.tiles / cut.pair), band = item / in_band, in = item % in_band;
    const int high = min(kBand, cut.parts - band * kBand);  // parts of this band
    return {in / high * cut.pair + member, (band * kBand + in % high) * N};
  }
  __device__ int rows_at(int row0) const { return min(N, int(p.x.rows) - row0); }
};

// The producer thread: copies weights and x into the ring; the first weights before the previous kernel has ended.
template <int M, int N>
__device__ void fetch(const Block<M, N>& block, const CUtensorMap& weight_map, const CUtensorMap& x_map) {
  using T = Tile<M, N>;
  const Product& p = block.p;
  const int n = block.n, pair = block.cut.pair, member = block.member;
  auto fetch_weight = [&](int s, int tile, int k) {
    barrier_expect(&block.full[s], T::stage);
    if (p.gated) {
      copy_box(block.base + s * T::stage, weight_map, k, 0, 0, tile * (M / 16), &block.full[s], kReadOnce);
    } else {
      copy_box(block.base + s * T::stage, weight_map, k, tile * M, &block.full[s], kReadOnce);
    }
  };
  auto fetch_x = [&](int s, int row0, int k) {
    const uint32_t to = block.base + s * T::stage + T::weight;
    if (pair == 1) {
      copy_box(to, x_map, k, row0, &block.full[s], kReadAgain);
    } else {
      const uint16_t both = uint16_t(3 << (block.rank - member));
      copy_box_to(both, to + member * (T::x / 2), x_map, k, row0 + member * (N / 2), &block.full[s], kReadAgain);
    }
  };
  const int ahead = min(n, T::stages);
  auto at = block.place(block.first);
  for (int i = 0; i < ahead; i++) fetch_weight(i, at.tile, (block.begin + i) * kChunk);
  if (n == ahead && block.first + block.n_clusters >= block.n_items) launch_next();
  wait_before();
  for (int i = 0; i < ahead; i++) fetch_x(i, at.row0, (block.begin + i) * kChunk);
  int s = ahead % T::stages, round = ahead / T::stages;
  for (int item = block.first, i = ahead; item < block.n_items; item += block.n_clusters, i = 0) {
    at = block.place(item);
    const bool last = item + block.n_clusters >= block.n_items;
    for (; i < n; i++) {
      barrier_wait(&block.empty[s], (round + 1) & 1);
      fetch_weight(s, at.tile, (block.begin + i) * kChunk);
      fetch_x(s, at.row0, (block.begin + i) * kChunk);
      if (last && i == n - 1) launch_next();
      if (++s == T::stages) {
        s = 0;
        round++;
      }
    }
  }
}

// One warp computes the factors of the norm.
template <int M, int N>
__device__ void norm_items(const Block<M, N>& block) {
  using T = Tile<M, N>;
  if (!block.p.squares) return;
  wait_before();
  for (int item = block.first; item < block.n_items; item += block.n_clusters) {
    const auto at = block.place(item);
    norm_factors(block.p, at.row0, block.rows_at(at.row0), block.factor);
    with_norm<T::consumers>();                            // factors are ready
    if (block.cut.split == 1) with_norm<T::consumers>();  // factors have been read
  }
}

// Accumulates a tile's products over this block's inputs; s and parity: position in the ring.
template <int M, int N>
__device__ void multiply(const Block<M, N>& block, float (&d)[N / 2], int& s, int& parity) {
  using T = Tile<M, N>;
  const int lane = threadIdx.x % 32;
  const uint32_t mine = block.base + threadIdx.x / 128 * 64 * 128;
  uint64_t* used = nullptr;  // `empty` barrier of the previous stage
  auto give_back = [&] {
    if (lane == 0) barrier_arrive(used);
    if (lane == 1 && block.cut.pair > 1) arrive_at(used, block.rank ^ 1);
  };
#pragma unroll
  for (float& v : d) v = 0;
  for (int i = 0; i < block.n; i++) {
    barrier_wait(&block.full[s], parity);
    wgmma_begin();
#pragma unroll
    for (int k = 0; k < kChunk / 16; k++)
      wgmma(d, rows_descriptor(mine + s * T::stage + k * 32), rows_descriptor(block.base + s * T::stage + T::weight + k * 32), 1);
    wgmma_commit();
    wgmma_wait<1>();
    if (i > 0) give_back();
    used = &block.empty[s];
    if (++s == T::stages) {
      s = 0;
      parity ^= 1;
    }
  }
  wgmma_wait<0>();
  settle(d);
  if (block.n > 0) give_back();
}

// The consumer warps: multiply, then epilogue. sums: [N][pitch], in the ring's memory.
template <int M, int N>
__device__ void work(const Block<M, N>& block, float* sums, cg::cluster_group& cluster) {
  using T = Tile<M, N>;
  const Product& p = block.p;
  const Cut& cut = block.cut;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  wait_before();
  int s = 0, parity = 0;
  for (int item = block.first; item < block.n_items; item += block.n_clusters) {
    const auto at = block.place(item);
    const int rows = block.rows_at(at.row0);
    Merge<M, N> merge{p, cut.split, block.share, at.tile, at.row0, rows};
    if (cut.split > 1) merge.load(0);  // prefetches the residual
    float d[N / 2];
    multiply(block, d, s, parity);
    if (p.squares) with_norm<T::consumers>();
    if (cut.split == 1) {
      finish<M, N>(p, at.tile, at.row0, rows, d, block.factor);
      if (p.squares) with_norm<T::consumers>();
      continue;
    }
    consumers_sync<T::consumers>();  // the ring is free
#pragma unroll
    for (int e = 0; e < N / 2; e++) {
      const int col = e / 4 * 8 + lane % 4 * 2 + e % 2, row = warp * 16 + lane / 4 + (e & 2 ? 8 : 0);
      sums[col * T::pitch + row] = d[e];
    }
    cluster.sync();
    merge.finish(block.factor, [&](int r) { return cluster.map_shared_rank(sums, unsigned(r * cut.pair + block.member)); });
  }
}

// A cluster processes tiles, or pairs of them, one after the other; with split inputs, only one.
template <int M, int N>
__global__ void __launch_bounds__(Tile<M, N>::threads, 2)
    product_kernel(const __grid_constant__ CUtensorMap weight_map, const __grid_constant__ CUtensorMap x_map, const Product p,
                   const Cut cut) {
  using T = Tile<M, N>;
  extern __shared__ char raw[];
  __shared__ uint64_t full[T::stages], empty[T::stages];
  __shared__ float factor[N];
  const uint32_t offset = (1024 - (shared_address(raw) & 1023)) & 1023;
  const Block<M, N> block(p, cut, shared_address(raw) + offset, full, empty, factor);
  const int warp = threadIdx.x / 32;
  cg::cluster_group cluster = cg::this_cluster();
  if (threadIdx.x == 0) {
    for (int s = 0; s < T::stages; s++) {
      barrier_init(&full[s], 1);
      barrier_init(&empty[s], cut.pair * T::warps);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  if (cut.pair > 1) {
    cluster.sync();
  } else {
    __syncthreads();
  }
  if (warp == T::warps) {
    if (threadIdx.x % 32 == 0) fetch(block, weight_map, x_map);
    __syncwarp();
  } else if (warp == T::warps + 1) {
    norm_items(block);
  } else {
    work(block, reinterpret_cast<float*>(raw + offset), cluster);
  }
  if (warp >= T::warps && cut.split > 1) cluster.sync();
  // Other blocks may still read this one's sums, or arrive at its barriers.
  if (block.size > 1) asm volatile("barrier.cluster.arrive.relaxed; barrier.cluster.wait;" ::: "memory");
}

// bf16 [rows, cols], copied in boxes of `box` rows and 64 columns.
CUtensorMap map_of(const void* data, int64_t rows, int64_t cols, int64_t stride, int box) {
  return tensor_map(data, {cols, rows}, {stride * 2}, {kChunk, box});
}
// A gated weight, with eight rows of the first half and eight of the second alternating.
CUtensorMap gated_map(const Product& p, int box) {
  return tensor_map(p.weight, {p.in, 8, 2, p.out / 16}, {p.in * 2, p.out * p.in, p.in * 16}, {kChunk, 8, 2, box / 16});
}

// Parts of the inputs: enough for a block on every multiprocessor. More clusters would not all be resident at once.
int split_of(const Launch& at, int64_t tiles, int64_t n_chunks, int most) {
  int split = 1;
  while (split < most && tiles * split < at.n_sm - 8 && n_chunks >= 8 * split) split *= 2;
  return split;
}
int64_t tiles_of(const Product& p, int m) { return p.gated ? div_up(p.out / 2, m / 2) : div_up(p.out, m); }
template <int M, int N>
void run(const Launch& at, const Product& p) {
  using T = Tile<M, N>;
  const int64_t tiles = tiles_of(p, M), n_chunks = div_up(p.in, kChunk);
  Cut cut;
  cut.pair = M == 128 ? 2 : 1;
  cut.tiles = int(div_up(tiles, cut.pair) * cut.pair);
  cut.parts = int(div_up(p.x.rows, N));
  cut.split = at.deterministic ? fixed_split(at, p) : split_of(at, cut.tiles * cut.parts, n_chunks, cut.pair == 1 ? 8 : 4);
  if (p.next.x && !at.deterministic) cut.split = std::max(cut.split, 2);
  const int bytes = std::max(T::stages * T::stage, cut.split > 1 ? T::sums : 0) + 1024;
  const int blocks = cut.tiles * cut.split * cut.parts;
  launch_clusters(at, product_kernel<M, N>, grid2(cut.split > 1 ? blocks : std::min(blocks, at.n_sm * 2)), cut.pair * cut.split, T::threads,
                  size_t(bytes), p.gated ? gated_map(p, M) : map_of(p.weight, p.out, p.in, p.in, M),
                  map_of(p.x.data, p.x.rows, p.in, p.x.stride, N / cut.pair), p, cut);
}

}  // namespace

// Chosen for tiles of 128 outputs, those of 17 to 128 rows; not if tiles of 64 suffice without a split, which the chain of rows needs
// for so many outputs.
int fixed_split(const Launch& at, const Product& p) {
  if (tiles_of(p, 64) >= at.n_sm - 8) return 1;
  return split_of(at, div_up(tiles_of(p, 128), 2) * 2, div_up(p.in, kChunk), 4);
}

// Whether tiles of 128 by 128 with split inputs give more multiprocessors work than product_many(), which has split parts one after
// the other.
static bool few_tiles(const Launch& at, const Product& p) {
  return fixed_split(at, p) > 1 && 2 * tiles_of(p, 256) * div_up(p.x.rows, 256) <= at.n_sm / 2;
}

void product(const Launch& at, const Product& p) {
  if (at.deterministic && p.next.x && fixed_split(at, p) == 1) {  // without a split, the epilogue has no half norm
    Product plain = p;
    plain.next = {};
    product(at, plain);
    return half_norm(at, p.y, p.next);
  }
  if (p.x.rows <= 8) {
    run<64, 8>(at, p);
  } else if (p.x.rows <= 16) {
    run<64, 16>(at, p);
  } else if (p.x.rows <= 32) {
    run<128, 32>(at, p);
  } else if (p.x.rows <= 64) {
    run<128, 64>(at, p);
  } else if (p.x.rows <= kFewRows || (at.deterministic && few_tiles(at, p))) {
    run<128, 128>(at, p);
  } else {
    product_many(at, p, at.deterministic ? fixed_split(at, p) : 1);
  }
}

}  // namespace mr::cuda
