// Products of up to 64 rows with a bf16 weight, where reading the weight is what counts. A block streams a tile of 64 weight rows,
// or its share of the inputs, through a ring in shared memory (bulk tensor copies, one thread asks) and multiplies with Hopper's
// matrix instruction, weights on the left; the blocks of a cluster split the inputs of one tile and add up through each other's
// shared memory, in order. The first ring of weights is asked for before the kernel ahead has finished.
// Reads out * in * 2 bytes of weights once, and x once a tile from the L2 cache.
#include <cooperative_groups.h>
#include <cuda.h>

#include "backend/cuda/device.cuh"
#include "backend/cuda/wgmma.cuh"

namespace mr::cuda {

namespace {

namespace cg = cooperative_groups;

constexpr int kTile = 64;   // weight rows; gated: 32 of each half
constexpr int kChunk = 64;  // inputs a stage: 128 bytes
constexpr int kConsumers = 128, kThreads = kConsumers + 32;
constexpr int kBlocksPerSm = 3;

template <int N>
struct Ring {
  static constexpr int weight = kTile * 128, x = N * 128, stage = weight + x;
  static constexpr int stages = N == 64 ? 4 : N == 32 ? 5 : 7;
  static constexpr int pitch = kTile + 4;  // floats of a row of sums
  static constexpr int bytes = stages * stage + 1024;
  static_assert(N * pitch * 4 <= stages * stage);
};

__device__ void barrier_init(uint64_t* b, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(count) : "memory");
}
__device__ void barrier_expect(uint64_t* b, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(b)), "r"(bytes) : "memory");
}
__device__ void barrier_arrive(uint64_t* b) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(b)) : "memory");
}
__device__ void barrier_wait(uint64_t* b, int parity) {
  asm volatile(
      "{.reg .pred p;\n"
      "again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
      "@p bra done;\n"
      "bra again;\n"
      "done: }" ::"r"(shared_address(b)),
      "r"(parity)
      : "memory");
}
// A box of the tensor whose first element is (column, row).
__device__ void copy_box(uint32_t to, const CUtensorMap& map, int column, int row, uint64_t* barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
      "l"(&map), "r"(column), "r"(row), "r"(shared_address(barrier)), "l"(policy)
      : "memory");
}
constexpr uint64_t kReadOnce = 0x12F0000000000000, kReadAgain = 0x14F0000000000000;  // L2: evict first, evict last

template <int N>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm)
    skinny_kernel(const __grid_constant__ CUtensorMap weight_map, const __grid_constant__ CUtensorMap x_map, const Product p, int split) {
  using R = Ring<N>;
  extern __shared__ char raw[];
  __shared__ uint64_t full[R::stages], empty[R::stages];
  const uint32_t offset = (1024 - (shared_address(raw) & 1023)) & 1023;
  char* memory = raw + offset;
  const uint32_t base = shared_address(memory);
  launch_next();
  const int tile = blockIdx.x / split, rank = blockIdx.x % split, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int n_chunks = (int(p.in) + kChunk - 1) / kChunk, per = (n_chunks + split - 1) / split;
  const int begin = min(rank * per, n_chunks), n = min(begin + per, n_chunks) - begin;
  const int half = int(p.out / 2), first = p.gated ? tile * 32 : tile * 64, second = p.gated ? half + tile * 32 : tile * 64 + 32;
  if (threadIdx.x == 0) {
    for (int s = 0; s < R::stages; s++) barrier_init(&full[s], 1), barrier_init(&empty[s], kConsumers / 32);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();

  float d[N / 2];
#pragma unroll
  for (float& v : d) v = 0;
  if (warp == kConsumers / 32) {
    if (lane == 0) {
      auto ask_weight = [&](int i) {
        const int s = i % R::stages, k = (begin + i) * kChunk;
        barrier_expect(&full[s], R::stage);
        copy_box(base + s * R::stage, weight_map, k, first, &full[s], kReadOnce);
        copy_box(base + s * R::stage + R::weight / 2, weight_map, k, second, &full[s], kReadOnce);
      };
      auto ask_x = [&](int i) {
        const int s = i % R::stages;
        copy_box(base + s * R::stage + R::weight, x_map, (begin + i) * kChunk, 0, &full[s], kReadAgain);
      };
      const int ahead = min(n, R::stages);
      for (int i = 0; i < ahead; i++) ask_weight(i);
      wait_before();
      for (int i = 0; i < ahead; i++) ask_x(i);
      for (int i = ahead; i < n; i++) {
        barrier_wait(&empty[i % R::stages], (i / R::stages + 1) & 1);
        ask_weight(i);
        ask_x(i);
      }
    }
    __syncwarp();
  } else {
    wait_before();
    for (int i = 0; i < n; i++) {
      const int s = i % R::stages;
      barrier_wait(&full[s], (i / R::stages) & 1);
      wgmma_begin();
#pragma unroll
      for (int k = 0; k < kChunk / 16; k++)
        wgmma(d, rows_descriptor(base + s * R::stage + k * 32), rows_descriptor(base + s * R::stage + R::weight + k * 32), 1);
      wgmma_commit();
      wgmma_wait<0>();
      if (lane == 0) barrier_arrive(&empty[s]);
    }
    asm volatile("bar.sync 1, %0;" ::"n"(kConsumers) : "memory");  // nobody reads the ring any more: sums [N][pitch] take its place
    float* sums = reinterpret_cast<float*>(memory);
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
      const int col = i / 4 * 8 + lane % 4 * 2 + i % 2, row = warp * 16 + lane / 4 + (i & 2 ? 8 : 0);
      sums[col * R::pitch + row] = d[i];
    }
  }

  cg::cluster_group cluster = cg::this_cluster();
  if (split > 1) {
    cluster.sync();
  } else {
    __syncthreads();
  }
  float* sums = reinterpret_cast<float*>(memory);
  auto total = [&](int col, int row) {
    float sum = 0;
    for (int r = 0; r < split; r++) sum += (split > 1 ? cluster.map_shared_rank(sums, unsigned(r)) : sums)[col * R::pitch + row];
    return sum;
  };
  const int outputs = (p.gated ? 32 : 64) / split, rows = int(p.x.rows);
  for (int i = threadIdx.x; i < outputs * rows; i += kThreads) {
    const int row = rank * outputs + i % outputs, col = i / outputs;  // output in the tile, row of x
    const int64_t at = int64_t(first) + row;
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
  if (split > 1) cluster.sync();  // others may still read here
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
  CUresult result = encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void*>(data), size, step, shape, one, CU_TENSOR_MAP_INTERLEAVE_NONE,
                           CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  must(result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue);
  return map;
}

template <int N>
void run(const Launch& at, const Product& p) {
  const int tiles = int(p.gated ? div_up(p.out / 2, 32) : div_up(p.out, kTile)), slots = kBlocksPerSm * at.n_sm;
  const int n_chunks = int(div_up(p.in, kChunk));
  auto uneven = [&](int blocks) { return blocks < slots * 5 / 8 || (blocks > slots && blocks < 2 * slots); };
  int split = 1;
  while (split < 8 && uneven(tiles * split) && n_chunks >= 8 * split) split *= 2;
  must(cudaFuncSetAttribute(skinny_kernel<N>, cudaFuncAttributeMaxDynamicSharedMemorySize, Ring<N>::bytes));
  cudaLaunchAttribute attribute[2]{};
  attribute[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute[0].val.programmaticStreamSerializationAllowed = 1;
  attribute[1].id = cudaLaunchAttributeClusterDimension;
  attribute[1].val.clusterDim = {unsigned(split), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(unsigned(tiles * split)), config.blockDim = dim3(kThreads), config.dynamicSmemBytes = Ring<N>::bytes;
  config.stream = at.stream, config.attrs = attribute, config.numAttrs = 2;
  must(cudaLaunchKernelEx(&config, skinny_kernel<N>, map_of(p.weight, p.out, p.in, p.in, 32), map_of(p.x.data, p.x.rows, p.in, p.x.stride, N), p,
                          split));
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
