// Products of up to 128 rows with a bf16 weight. A block streams a tile of M weight rows, or its share of the inputs, and N rows
// of x through a ring in shared memory (bulk tensor copies, one thread asks) and multiplies with Hopper's matrix instruction,
// weights on the left. A cluster is `pair` tiles, which share every piece of x, times `split` parts of the inputs, which add up
// through each other's shared memory, in order. A kernel lets the next one start when it has asked for its last weights; that one
// asks for its first ring of weights while the sums before it are finished.
// Reads out * in * 2 bytes of weights once every N rows, and x from the L2 cache once every `pair` tiles.
#include <cooperative_groups.h>

#include <algorithm>

#include "backend/cuda/tensor_map.cuh"
#include "backend/cuda/wgmma.cuh"

namespace mr::cuda {

namespace {

namespace cg = cooperative_groups;

constexpr int kChunk = 64;  // inputs a stage: 128 bytes
constexpr int kBand = 8;    // parts of N rows whose x stays in the L2 cache while all weights go by

template <int M, int N>
struct Tile {
  static constexpr int consumers = M * 2, threads = consumers + 32;
  static constexpr int weight = M * 128, x = N * 128, stage = weight + x;
  static constexpr int pitch = M + 4;  // floats of a row of sums, which lie over the ring
  // So that a block of the next product fits beside this one's, where bytes count.
  static constexpr int stages = M == 128 ? (N == 128 ? 3 : N == 64 ? 4 : 5) : N == 16 ? 9 : 10;
  static constexpr int bytes = std::max(stages * stage, N* pitch * 4) + 1024;
};

struct Cut {
  int pair, split, tiles, parts;  // tiles: a multiple of pair; parts: of N rows
};

__device__ void arrive_at(uint64_t* barrier, int rank) {  // of another block of the cluster
  asm volatile(
      "{.reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];}" ::"r"(shared_address(barrier)),
      "r"(rank)
      : "memory");
}
// One output of the tile: `row` is its place there, `col` the row of x, total(place) a finished sum.
template <int M, class Total>
__device__ void finish(const Product& p, int first, int row, int64_t col, Total total) {
  const int64_t at = int64_t(first) + row, half = p.out / 2;
  if (p.gated) {
    if (at < half) store(p.y.data, p.y.dtype, col * p.y.stride + at, activated(p.activation, total(row)) * total(M / 2 + row));
  } else if (at < p.out) {
    float sum = total(row);
    if (p.bias) sum += p.bias[at];
    sum *= p.scale;
    if (p.residual) sum += p.residual[col * p.residual_stride + at];
    store(p.y.data, p.y.dtype, col * p.y.stride + at, sum);
  }
}

template <int M, int N>
__global__ void __launch_bounds__(Tile<M, N>::threads, 2)
    product_kernel(const __grid_constant__ CUtensorMap weight_map, const __grid_constant__ CUtensorMap x_map, const Product p,
                   const Cut cut) {
  using T = Tile<M, N>;
  extern __shared__ char raw[];
  constexpr int stages = T::stages;
  __shared__ uint64_t full[stages], empty[stages];
  const uint32_t offset = (1024 - (shared_address(raw) & 1023)) & 1023, base = shared_address(raw) + offset;
  float* sums = reinterpret_cast<float*>(raw + offset);  // [N][pitch]
  const int size = cut.pair * cut.split, rank = int(blockIdx.x) % size, member = rank % cut.pair, share = rank / cut.pair;
  const int in_band = kBand * (cut.tiles / cut.pair), band = int(blockIdx.x) / size / in_band, in = int(blockIdx.x) / size % in_band;
  const int high = min(kBand, cut.parts - band * kBand);  // parts of this band
  const int tile = in / high * cut.pair + member, row0 = (band * kBand + in % high) * N;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int n_chunks = (int(p.in) + kChunk - 1) / kChunk, per = (n_chunks + cut.split - 1) / cut.split;
  const int begin = min(share * per, n_chunks), n = min(begin + per, n_chunks) - begin;  // chunks of a tile
  const int rows = min(N, int(p.x.rows) - row0), width = p.gated ? M / 2 : M;            // outputs of a tile
  cg::cluster_group cluster = cg::this_cluster();
  if (threadIdx.x == 0) {
    for (int s = 0; s < stages; s++) barrier_init(&full[s], 1), barrier_init(&empty[s], cut.pair * T::consumers / 32);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  if (cut.pair > 1) {
    cluster.sync();
  } else {
    __syncthreads();
  }

  if (warp == T::consumers / 32) {
    if (lane == 0) {
      const int first = tile * width, second = p.gated ? int(p.out / 2) + first : first + M / 2;
      auto ask_weight = [&](int s, int k) {
        barrier_expect(&full[s], T::stage);
        copy_box(base + s * T::stage, weight_map, k, first, &full[s], kReadOnce);
        copy_box(base + s * T::stage + T::weight / 2, weight_map, k, second, &full[s], kReadOnce);
      };
      auto ask_x = [&](int s, int k) {
        const uint32_t to = base + s * T::stage + T::weight;
        if (cut.pair == 1) {
          copy_box(to, x_map, k, row0, &full[s], kReadAgain);
        } else {
          const uint16_t both = uint16_t(3 << (rank - member));
          copy_box_to(both, to + member * (T::x / 2), x_map, k, row0 + member * (N / 2), &full[s], kReadAgain);
        }
      };
      const int ahead = min(n, stages);
      for (int i = 0; i < ahead; i++) ask_weight(i, (begin + i) * kChunk);
      if (n == ahead) launch_next();
      wait_before();
      for (int i = 0; i < ahead; i++) ask_x(i, (begin + i) * kChunk);
      for (int i = ahead, s = ahead % stages, round = ahead / stages; i < n; i++) {
        barrier_wait(&empty[s], (round + 1) & 1);
        ask_weight(s, (begin + i) * kChunk);
        ask_x(s, (begin + i) * kChunk);
        if (i == n - 1) launch_next();
        if (++s == stages) s = 0, round++;
      }
    }
    __syncwarp();
  } else {
    wait_before();
    float d[N / 2];
#pragma unroll
    for (float& v : d) v = 0;
    const uint32_t mine = base + warp / 4 * 64 * 128;
    for (int i = 0, s = 0, parity = 0; i < n; i++) {
      barrier_wait(&full[s], parity);
      wgmma_begin();
#pragma unroll
      for (int k = 0; k < kChunk / 16; k++)
        wgmma(d, rows_descriptor(mine + s * T::stage + k * 32), rows_descriptor(base + s * T::stage + T::weight + k * 32), 1);
      wgmma_commit();
      wgmma_wait<1>();  // the products of the stage before are done
      if (i > 0) {
        uint64_t* free = &empty[s == 0 ? stages - 1 : s - 1];
        if (lane == 0) barrier_arrive(free);
        if (lane == 1 && cut.pair > 1) arrive_at(free, rank ^ 1);
      }
      if (++s == stages) s = 0, parity ^= 1;
    }
    wgmma_wait<0>();
    settle(d);
    asm volatile("bar.sync 1, %0;" ::"n"(T::consumers) : "memory");  // nobody reads the ring any more
#pragma unroll
    for (int e = 0; e < N / 2; e++) {
      const int col = e / 4 * 8 + lane % 4 * 2 + e % 2, row = warp * 16 + lane / 4 + (e & 2 ? 8 : 0);
      sums[col * T::pitch + row] = d[e];
    }
  }
  if (size > 1) {
    cluster.sync();
  } else {
    __syncthreads();
  }
  if (cut.split == 1) {
    for (int e = threadIdx.x; e < width * rows; e += T::threads)
      finish<M>(p, tile * width, e % width, row0 + e / width, [&](int row) { return sums[e / width * T::pitch + row]; });
    return;  // a pair: the other needs nothing of this block any more
  }
  const int mine = width / cut.split;
  for (int e = threadIdx.x; e < mine * rows; e += T::threads) {
    auto total = [&](int row) {
      float sum = 0;
      for (int r = 0; r < cut.split; r++) sum += cluster.map_shared_rank(sums, unsigned(r * cut.pair + member))[e / mine * T::pitch + row];
      return sum;
    };
    finish<M>(p, tile * width, share * mine + e % mine, row0 + e / mine, total);
  }
  cluster.sync();  // others may still read here
}

// bf16 [rows, cols], read in boxes of `box` rows and 64 columns.
CUtensorMap map_of(const void* data, int64_t rows, int64_t cols, int64_t stride, int box) {
  return tensor_map(data, {cols, rows}, {stride * 2}, {kChunk, box});
}

// Parts of the inputs: enough for a block on every multiprocessor.
int split_of(const Launch& at, int64_t tiles, int64_t n_chunks, int most) {
  int split = 1;
  while (split < most && tiles * split < at.n_sm - 8 && n_chunks >= 8 * split) split *= 2;
  return split;
}
int64_t tiles_of(const Product& p, int m) { return p.gated ? div_up(p.out / 2, m / 2) : div_up(p.out, m); }
// Of the shape alone, so that a row's sum is always the same.
int fixed_split(const Launch& at, const Product& p) { return split_of(at, tiles_of(p, 64), div_up(p.in, kChunk), 4); }

template <int M, int N>
void run(const Launch& at, const Product& p) {
  using T = Tile<M, N>;
  const int64_t tiles = tiles_of(p, M), n_chunks = div_up(p.in, kChunk);
  Cut cut;
  cut.pair = M == 128 ? 2 : 1;
  cut.tiles = int(div_up(tiles, cut.pair) * cut.pair), cut.parts = int(div_up(p.x.rows, N));
  cut.split = at.deterministic ? fixed_split(at, p) : split_of(at, cut.tiles * cut.parts, n_chunks, cut.pair == 1 ? 8 : 4);
  allow_shared(product_kernel<M, N>, T::bytes);
  cudaLaunchAttribute attribute[3]{};
  cudaLaunchConfig_t config{};
  config.numAttrs = unsigned(common_attributes(attribute)) + 1;
  attribute[2].id = cudaLaunchAttributeClusterDimension;
  attribute[2].val.clusterDim = {unsigned(cut.pair * cut.split), 1, 1};
  config.gridDim = dim3(unsigned(cut.tiles * cut.split * cut.parts)), config.blockDim = dim3(T::threads);
  config.dynamicSmemBytes = size_t(T::bytes), config.stream = at.stream, config.attrs = attribute;
  must(cudaLaunchKernelEx(&config, product_kernel<M, N>, map_of(p.weight, p.out, p.in, p.in, M / 2),
                          map_of(p.x.data, p.x.rows, p.in, p.x.stride, N / cut.pair), p, cut));
}

}  // namespace

void product(const Launch& at, const Product& p) {
  if (p.x.rows <= 8) {
    run<64, 8>(at, p);
  } else if (p.x.rows <= 16) {
    run<64, 16>(at, p);
  } else if (p.x.rows <= 32) {
    run<128, 32>(at, p);
  } else if (p.x.rows <= 64) {
    run<128, 64>(at, p);
  } else if (p.x.rows <= 128) {
    run<128, 128>(at, p);
  } else {
    product_many(at, p, at.deterministic ? fixed_split(at, p) : 1);
  }
}

}  // namespace mr::cuda
