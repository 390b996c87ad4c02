// act(gate) * up of so many rows that power is the limit, and so the bytes moved: tiles of 256 rows of x and 192 of the weight, 96
// gate rows and the matching 96 up rows, combined in registers and written once. Persistent blocks: clusters of two take the same
// rows of x and adjacent outputs in turn, and each multicasts half of x to both. A producer thread issues bulk tensor copies into a
// ring, two warpgroups multiply 128 rows each.
// Flops: 2 * rows * out * in.
#include <algorithm>

#include "backend/cuda/device/tensor_map.cuh"
#include "backend/cuda/device/wgmma.cuh"
#include "backend/cuda/gemm/gemm.h"

namespace mr::cuda {

namespace {

constexpr int kChunk = 64, kRows = 256, kOuts = 192, kStages = 4;  // inputs per stage; rows and weight rows per block
constexpr int kX = kRows * 128, kWeight = kOuts * 128, kStage = kX + kWeight, kBytes = kStages * kStage + 1024;
constexpr int kGroups = 2, kThreads = (kGroups + 1) * 128;  // warpgroups that multiply, and the producer's
constexpr int kBand = 8;                                    // tiles of rows whose x stays in L2 while all weights stream through
constexpr int kLeastRows = 1280;

struct Order {
  int tiles, parts;  // of kOuts results per cluster; of kRows
  int n_clusters;
};

// The index-th tile of a cluster.
struct Place {
  int tile, part;
  __device__ Place(const Order& o, int index) {
    const int in_band = kBand * o.tiles, band = index / in_band, in = index % in_band, high = min(kBand, o.parts - band * kBand);
    tile = in / high;
    part = band * kBand + in % high;
  }
};

struct Ring {
  int stage = 0, parity = 0;
  __device__ void step() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// The producer, one thread: issues all copies.
__device__ void produce(const CUtensorMap& weight_map, const CUtensorMap& x_map, const Product& p, const Order& order, uint32_t base,
                        uint64_t* full, uint64_t* empty) {
  const int member = int(blockIdx.x) % 2, n_chunks = (int(p.in) + kChunk - 1) / kChunk, first = int(blockIdx.x) / 2;
  auto copy_weight = [&](int s, int chunk, int tile) {
    barrier_expect(&full[s], kStage);
    for (int half = 0; half < 2; half++)
      copy_box(base + s * kStage + kX + half * (kWeight / 2), weight_map, chunk * kChunk,
               (tile * 2 + member) * (kOuts / 2) + half * int(p.out / 2), &full[s], kNormal);
  };
  auto copy_x = [&](int s, int chunk, int part) {
    copy_box_to(3, base + s * kStage + member * (kX / 2), x_map, chunk * kChunk, part * kRows + member * (kRows / 2), &full[s], kNormal);
  };
  Ring ring;
  for (int index = first; index < order.tiles * order.parts; index += order.n_clusters) {
    const Place place(order, index);
    int chunk = 0;
    if (index == first) {  // weights are constant: no need to wait for earlier kernels
      const int ahead = min(n_chunks, kStages);
      for (int i = 0; i < ahead; i++) copy_weight(i, i, place.tile);
      wait_before();
      for (; chunk < ahead; chunk++, ring.step()) copy_x(ring.stage, chunk, place.part);
    }
    for (; chunk < n_chunks; chunk++, ring.step()) {
      barrier_wait(&empty[ring.stage], ring.parity ^ 1);
      copy_weight(ring.stage, chunk, place.tile);
      copy_x(ring.stage, chunk, place.part);
    }
  }
  launch_next();
}

// Results of 64 rows, as bf16 in 16-byte stores: the four lanes of a row transpose 32 columns, so that each has 8 consecutive ones.
template <Activation kAct>
__device__ void write_gated(const Product& p, const float (&d)[kOuts / 2], int column, int64_t row) {
  const int t = threadIdx.x % 4;
#pragma unroll
  for (int i = 0; i < kOuts / 4; i += 16) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      auto value = [&](int e) { return activated(kAct, d[e]) * d[kOuts / 4 + e]; };
      uint32_t v[4];
#pragma unroll
      for (int j = 0; j < 4; j++) v[j] = pack(value(i + 4 * j + 2 * h), value(i + 4 * j + 2 * h + 1));
#pragma unroll
      for (int bit = 1; bit < 4; bit *= 2)
#pragma unroll
        for (int j = 0; j < 4; j++) {
          if (j & bit) continue;
          uint32_t &low = v[j], &high = v[j | bit];
          const uint32_t got = __shfl_xor_sync(~0u, t & bit ? low : high, bit);
          (t & bit ? low : high) = got;
        }
      const int64_t r = row + threadIdx.x % 32 / 4 + 8 * h, c = column + i * 2 + 8 * t;
      if (r < p.x.rows && c < p.y.cols)
        *reinterpret_cast<uint4*>(static_cast<bf16*>(p.y.data) + r * p.y.stride + c) = make_uint4(v[0], v[1], v[2], v[3]);
    }
  }
}

template <Activation kAct>
__device__ void multiply(const Product& p, const Order& order, uint32_t base, uint64_t* full, uint64_t* empty) {
  const int group = threadIdx.x / 128, lane = threadIdx.x % 32, n_chunks = (int(p.in) + kChunk - 1) / kChunk;
  float d[2][kOuts / 2];  // 64 rows each, in wgmma.cuh's layout: gates, then ups
  Ring ring;
  auto release = [&](int s) {
    if (lane < 2) arrive_at(&empty[s], lane);
  };
  for (int index = int(blockIdx.x) / 2; index < order.tiles * order.parts; index += order.n_clusters) {
    int last = 0;
#pragma unroll
    for (int i = 0; i < kOuts / 2; i++) d[0][i] = d[1][i] = 0;
    for (int chunk = 0; chunk < n_chunks; chunk++, ring.step()) {
      barrier_wait(&full[ring.stage], ring.parity);
      const uint32_t x = base + ring.stage * kStage + group * (kX / 2), weight = base + ring.stage * kStage + kX;
      wgmma_begin();
#pragma unroll
      for (int k = 0; k < kChunk / 16; k++)
#pragma unroll
        for (int h = 0; h < 2; h++) wgmma(d[h], rows_descriptor(x + h * 64 * 128 + k * 32), rows_descriptor(weight + k * 32), 1);
      wgmma_commit();
      wgmma_wait<1>();  // the previous stage's products are done
      if (chunk > 0) release(last);
      last = ring.stage;
    }
    wgmma_wait<0>();
    settle(d[0]);
    settle(d[1]);
    release(last);
    const Place place(order, index);
    const int column = (place.tile * 2 + int(blockIdx.x) % 2) * (kOuts / 2), row = place.part * kRows + threadIdx.x / 32 * 16;
#pragma unroll
    for (int h = 0; h < 2; h++) write_gated<kAct>(p, d[h], column, row + (group + h) * 64);
  }
}

template <Activation kAct>
__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(kThreads, 1)
    wide_kernel(const __grid_constant__ CUtensorMap weight_map, const __grid_constant__ CUtensorMap x_map,
                const __grid_constant__ Product p, const __grid_constant__ Order order) {
  extern __shared__ char raw[];
  __shared__ uint64_t full[kStages], empty[kStages];
  const uint32_t base = (shared_address(raw) + 1023) & ~1023u;
  begin_ring(full, empty, 2 * kGroups * 4);
  if (threadIdx.x / 128 == kGroups) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    if (threadIdx.x % 128 == 0) produce(weight_map, x_map, p, order, base, full, empty);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    wait_before();
    multiply<kAct>(p, order, base, full, empty);
  }
  cluster_sync();  // the other block may still multicast into this one's shared memory
}

Order order_of(const Launch& at, const Product& p) {
  const int64_t tiles = div_up(p.out / 2, kOuts), parts = div_up(p.x.rows, kRows);
  return {int(tiles), int(parts), int(std::min<int64_t>(tiles * parts, at.n_sm / 2))};
}

}  // namespace

bool wants_product_wide(const Launch& at, const Product& p) {
  const bool fits = p.gated && (p.activation == Activation::silu || p.activation == Activation::gelu_tanh) && p.out % 16 == 0 &&
                    p.in % 8 == 0 && p.y.dtype == DType::bf16 && aligned(p.y);
  if (!fits || p.x.rows < kLeastRows) return false;
  const Order order = order_of(at, p);
  const int64_t n = int64_t(order.tiles) * order.parts, room = div_up(n, order.n_clusters) * order.n_clusters;
  return room * 100 <= n * 106;  // the last wave of tiles is nearly full, or there are many waves
}

void product_wide(const Launch& at, const Product& p) {
  const Order order = order_of(at, p);
  const CUtensorMap weight = tensor_map(p.weight, {p.in, p.out}, {p.in * 2}, {kChunk, kOuts / 2}),
                    x = tensor_map(p.x.data, {p.in, p.x.rows}, {p.x.stride * 2}, {kChunk, kRows / 2});
  auto kernel = p.activation == Activation::silu ? wide_kernel<Activation::silu> : wide_kernel<Activation::gelu_tanh>;
  launch(at, kernel, grid2(2 * order.n_clusters), kThreads, kBytes, weight, x, p, order);
}

}  // namespace mr::cuda
