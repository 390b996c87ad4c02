// Products of up to 64 rows with a bf16 weight, where reading the weight is what counts. A block streams a tile of 64 weight rows,
// or its share of the inputs, through a ring in shared memory (bulk tensor copies, one thread asks) and multiplies with Hopper's
// matrix instruction, weights on the left; the blocks of a cluster split the inputs of one tile and add up through each other's
// shared memory, in order. The first ring of weights is asked for before the kernel ahead has finished.
// Reads out * in * 2 bytes of weights once, and x once a tile from the L2 cache.
#include <cooperative_groups.h>
#include <cuda.h>

#include "backend/cuda/copies.cuh"
#include "backend/cuda/wgmma.cuh"

namespace mr::cuda {

namespace {

namespace cg = cooperative_groups;

constexpr int kTile = 64;   // weight rows; gated: 32 of each half
constexpr int kChunk = 64;  // inputs a stage: 128 bytes
constexpr int kConsumers = 128, kThreads = kConsumers + 32;

template <int N>
struct Ring {
  static constexpr int weight = kTile * 128, x = N * 128, stage = weight + x;
  static constexpr int pitch = kTile + 4;                        // floats of a row of sums
  static constexpr int stages = N == 64 ? 5 : N == 32 ? 8 : 10;  // so that a block of the next product fits beside this one's
  static constexpr int bytes = stages * stage + N * pitch * 4 + 1024;
};

// A box of the tensor whose first element is (column, row).
__device__ void copy_box(uint32_t to, const CUtensorMap& map, int column, int row, uint64_t* barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(
          to),
      "l"(&map), "r"(column), "r"(row), "r"(shared_address(barrier)), "l"(policy)
      : "memory");
}

// One output of the tile: `row` is its place there, `col` the row of x, total(col, place) a finished sum.
template <class Total>
__device__ void finish(const Product& p, int first, int row, int col, Total total) {
  const int64_t at = int64_t(first) + row, half = p.out / 2;
  if (p.gated) {
    if (at < half) store(p.y.data, p.y.dtype, col * p.y.stride + at, activated(p.activation, total(col, row)) * total(col, 32 + row));
  } else if (at < p.out) {
    float sum = total(col, row);
    if (p.bias) sum += p.bias[at];
    sum *= p.scale;
    if (p.residual) sum += p.residual[col * p.residual_stride + at];
    store(p.y.data, p.y.dtype, col * p.y.stride + at, sum);
  }
}

// A cluster of `split` blocks takes one tile.
template <int N>
__global__ void __launch_bounds__(kThreads, 4)
    skinny_kernel(const __grid_constant__ CUtensorMap weight_map, const __grid_constant__ CUtensorMap x_map, const Product p, int split) {
  using R = Ring<N>;
  extern __shared__ char raw[];
  constexpr int stages = R::stages;
  __shared__ uint64_t full[stages], empty[stages];
  const uint32_t offset = (1024 - (shared_address(raw) & 1023)) & 1023, base = shared_address(raw) + offset;
  float* sums = reinterpret_cast<float*>(raw + offset + stages * R::stage);  // [N][pitch]
  launch_next();
  const int tile = blockIdx.x / split, rank = blockIdx.x % split;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int n_chunks = (int(p.in) + kChunk - 1) / kChunk, per = (n_chunks + split - 1) / split;
  const int begin = min(rank * per, n_chunks), n = min(begin + per, n_chunks) - begin;  // chunks of a tile
  const int rows = int(p.x.rows), width = p.gated ? 32 : 64;                            // outputs of a tile
  if (threadIdx.x == 0) {
    for (int s = 0; s < stages; s++) barrier_init(&full[s], 1), barrier_init(&empty[s], kConsumers / 32);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();

  if (warp == kConsumers / 32) {
    if (lane == 0) {
      auto ask_weight = [&](int s, int k) {
        const int first = tile * width, second = p.gated ? int(p.out / 2) + first : first + 32;
        barrier_expect(&full[s], R::stage);
        copy_box(base + s * R::stage, weight_map, k, first, &full[s], kReadOnce);
        copy_box(base + s * R::stage + R::weight / 2, weight_map, k, second, &full[s], kReadOnce);
      };
      auto ask_x = [&](int s, int k) { copy_box(base + s * R::stage + R::weight, x_map, k, 0, &full[s], kReadAgain); };
      const int ahead = min(n, stages);
      for (int i = 0; i < ahead; i++) ask_weight(i, (begin + i) * kChunk);
      wait_before();
      for (int i = 0; i < ahead; i++) ask_x(i, (begin + i) * kChunk);
      for (int i = ahead, s = ahead % stages, round = ahead / stages; i < n; i++) {
        barrier_wait(&empty[s], (round + 1) & 1);
        ask_weight(s, (begin + i) * kChunk);
        ask_x(s, (begin + i) * kChunk);
        if (++s == stages) s = 0, round++;
      }
    }
    __syncwarp();
  } else {
    wait_before();
    float d[N / 2];
#pragma unroll
    for (float& v : d) v = 0;
    for (int i = 0, s = 0, parity = 0; i < n; i++) {
      barrier_wait(&full[s], parity);
      wgmma_begin();
#pragma unroll
      for (int k = 0; k < kChunk / 16; k++)
        wgmma(d, rows_descriptor(base + s * R::stage + k * 32), rows_descriptor(base + s * R::stage + R::weight + k * 32), 1);
      wgmma_commit();
      wgmma_wait<1>();  // the products of the stage before are done
      if (lane == 0 && i > 0) barrier_arrive(&empty[s == 0 ? stages - 1 : s - 1]);
      if (++s == stages) s = 0, parity ^= 1;
    }
    wgmma_wait<0>();
#pragma unroll
    for (int e = 0; e < N / 2; e++) {
      const int col = e / 4 * 8 + lane % 4 * 2 + e % 2, row = warp * 16 + lane / 4 + (e & 2 ? 8 : 0);
      sums[col * R::pitch + row] = d[e];
    }
  }
  if (split == 1) {
    __syncthreads();
    for (int e = threadIdx.x; e < width * rows; e += kThreads)
      finish(p, tile * width, e % width, e / width, [&](int col, int row) { return sums[col * R::pitch + row]; });
    return;
  }

  cg::cluster_group cluster = cg::this_cluster();
  cluster.sync();
  auto total = [&](int col, int row) {
    float sum = 0;
    for (int r = 0; r < split; r++) sum += cluster.map_shared_rank(sums, unsigned(r))[col * R::pitch + row];
    return sum;
  };
  const int mine = width / split;
  for (int e = threadIdx.x; e < mine * rows; e += kThreads) finish(p, tile * width, rank * mine + e % mine, e / mine, total);
  cluster.sync();  // others may still read here
}

using Encode = decltype(&cuTensorMapEncodeTiled);

Encode encoder() {
  void* f = nullptr;
  cudaDriverEntryPointQueryResult found;
  must(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000, cudaEnableDefault, &found));
  return reinterpret_cast<Encode>(f);
}

// bf16 [rows, cols], read in boxes of `box` rows and 64 columns, swizzled.
CUtensorMap map_of(const void* data, int64_t rows, int64_t cols, int64_t stride, int box) {
  static const Encode encode = encoder();
  CUtensorMap map;
  const cuuint64_t size[] = {cuuint64_t(cols), cuuint64_t(rows)}, step[] = {cuuint64_t(stride) * 2};
  const cuuint32_t shape[] = {kChunk, cuuint32_t(box)}, one[] = {1, 1};
  CUresult result =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void*>(data), size, step, shape, one, CU_TENSOR_MAP_INTERLEAVE_NONE,
             CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  must(result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue);
  return map;
}

template <int N>
void run(const Launch& at, const Product& p) {
  const int tiles = int(p.gated ? div_up(p.out / 2, 32) : div_up(p.out, kTile)), n_chunks = int(div_up(p.in, kChunk));
  int split = 1;  // enough for a block on every multiprocessor; of the shape alone, so that a row's sum is always the same
  while (split < 8 && tiles * split < at.n_sm - 8 && n_chunks >= 8 * split) split *= 2;
  const int bytes = Ring<N>::bytes;
  must(cudaFuncSetAttribute(skinny_kernel<N>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  cudaLaunchAttribute attribute[2]{};
  attribute[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute[0].val.programmaticStreamSerializationAllowed = 1;
  attribute[1].id = cudaLaunchAttributeClusterDimension;
  attribute[1].val.clusterDim = {unsigned(split), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(unsigned(tiles * split)), config.blockDim = dim3(kThreads), config.dynamicSmemBytes = size_t(bytes);
  config.stream = at.stream, config.attrs = attribute, config.numAttrs = 2;
  must(cudaLaunchKernelEx(&config, skinny_kernel<N>, map_of(p.weight, p.out, p.in, p.in, 32),
                          map_of(p.x.data, p.x.rows, p.in, p.x.stride, N), p, split));
}

}  // namespace

void skinny(const Launch& at, const Product& p) {
  if (p.x.rows <= 8) {
    run<8>(at, p);
  } else if (p.x.rows <= 16) {
    run<16>(at, p);
  } else if (p.x.rows <= 32) {
    run<32>(at, p);
  } else {
    run<64>(at, p);
  }
}

}  // namespace mr::cuda
