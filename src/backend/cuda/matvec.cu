// Products of a few rows with a bf16 weight, where reading the weight is all that counts. A block takes 16 output rows and its
// warps split the inputs; each warp keeps up to 8 KB of weights on their way and multiplies with mma instructions, x as the left
// operand. Inputs are permuted inside a chunk of 32 so that every lane reads 16 consecutive bytes: lane 4 g + t holds inputs
// 8 t .. 8 t + 7 of row g on both sides. Weights are asked for before the kernel ahead has finished.
#include "backend/cuda/device.cuh"

namespace mr::cuda {

namespace {

constexpr int kWarps = 8, kThreads = 32 * kWarps;
constexpr int kChunk = 32;  // inputs
constexpr int kBatch = 4;   // chunks asked for at a time; two batches are on their way

struct Tile {
  uint4 w[kBatch][2];
};

// What a finished sum becomes.
__device__ void finish(const Product& p, int64_t row, int64_t col, float sum) {
  if (p.bias) sum += p.bias[col];
  sum *= p.scale;
  if (p.residual) sum += p.residual[row * p.residual_stride + col];
  store(p.y.data, p.y.dtype, row * p.y.stride + col, sum);
}

// kHigh: more than 8 rows.
template <bool kHigh>
__global__ void __launch_bounds__(kThreads, 2) matvec_kernel(Product p) {
  __shared__ float sums[kWarps][16][16];  // [row][output]
  launch_next();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int rows = int(p.x.rows), in = int(p.in), half = int(p.out / 2);
  const int first = p.gated ? int(blockIdx.x) * 8 + g : int(blockIdx.x) * 16 + g, second = p.gated ? half + first : first + 8;
  const bool has_first = first < (p.gated ? half : int(p.out)), has_second = p.gated ? has_first : second < int(p.out);
  const bf16* w0 = static_cast<const bf16*>(p.weight) + int64_t(has_first ? first : 0) * in + 8 * t;
  const bf16* w1 = static_cast<const bf16*>(p.weight) + int64_t(has_second ? second : 0) * in + 8 * t;
  const int n_chunks = (in + kChunk - 1) / kChunk, per = (n_chunks + kWarps - 1) / kWarps;
  const int begin = warp * per, end = min(begin + per, n_chunks);

  auto ask = [&](Tile& tile, int c) {
#pragma unroll
    for (int u = 0; u < kBatch; u++) {
      bool there = c + u < end && (c + u) * kChunk + 8 * t < in;
      tile.w[u][0] = there && has_first ? stream16(w0 + (c + u) * kChunk) : uint4{};
      tile.w[u][1] = there && has_second ? stream16(w1 + (c + u) * kChunk) : uint4{};
    }
  };
  Tile a, b;
  ask(a, begin);
  ask(b, begin + kBatch);
  wait_before();

  const bf16* x0 = static_cast<const bf16*>(p.x.data) + g * p.x.stride + 8 * t;
  const bf16* x1 = x0 + 8 * p.x.stride;
  const bool has_x0 = g < rows, has_x1 = kHigh && g + 8 < rows;
  float sum[2][4] = {};
  auto multiply = [&](const Tile& tile, int c) {
#pragma unroll
    for (int u = 0; u < kBatch; u++) {
      bool there = c + u < end && (c + u) * kChunk + 8 * t < in;
      uint4 lo{}, hi{};
      if (there && has_x0) lo = *reinterpret_cast<const uint4*>(x0 + (c + u) * kChunk);
      if (there && has_x1) hi = *reinterpret_cast<const uint4*>(x1 + (c + u) * kChunk);
#pragma unroll
      for (int n = 0; n < 2; n++) {
        mma(sum[n], lo.x, hi.x, lo.y, hi.y, tile.w[u][n].x, tile.w[u][n].y);
        mma(sum[n], lo.z, hi.z, lo.w, hi.w, tile.w[u][n].z, tile.w[u][n].w);
      }
    }
  };
  for (int c = begin; c < end; c += 2 * kBatch) {
    multiply(a, c);
    ask(a, c + 2 * kBatch);
    multiply(b, c + kBatch);
    ask(b, c + 3 * kBatch);
  }
#pragma unroll
  for (int n = 0; n < 2; n++) {
    *reinterpret_cast<float2*>(&sums[warp][g][n * 8 + 2 * t]) = make_float2(sum[n][0], sum[n][1]);
    if (kHigh) *reinterpret_cast<float2*>(&sums[warp][g + 8][n * 8 + 2 * t]) = make_float2(sum[n][2], sum[n][3]);
  }
  __syncthreads();

  auto total = [&](int row, int col) {
    float s = 0;
    for (int w = 0; w < kWarps; w++) s += sums[w][row][col];
    return s;
  };
  if (p.gated) {
    const int row = threadIdx.x / 8, col = threadIdx.x % 8;
    if (row >= rows || int(blockIdx.x) * 8 + col >= half) return;
    float y = activated(p.activation, total(row, col)) * total(row, 8 + col);
    store(p.y.data, p.y.dtype, row * p.y.stride + int64_t(blockIdx.x) * 8 + col, y);
  } else {
    const int row = threadIdx.x / 16, col = threadIdx.x % 16;
    if (row < rows && int64_t(blockIdx.x) * 16 + col < p.out) finish(p, row, int64_t(blockIdx.x) * 16 + col, total(row, col));
  }
}

// One warp an output, whatever the alignment.
__global__ void product_any_kernel(Product p) {
  launch_next();
  wait_before();
  const int64_t half = p.out / 2, n = p.gated ? half : p.out;
  const int64_t col = int64_t(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32, row = blockIdx.y;
  if (col >= n) return;
  auto dot = [&](int64_t o) {
    float sum = 0;
    for (int64_t k = threadIdx.x % 32; k < p.in; k += 32)
      sum += load(p.weight, DType::bf16, o * p.in + k) * load(p.x.data, p.x.dtype, row * p.x.stride + k);
    return warp_sum(sum);
  };
  float sum = dot(col), up = p.gated ? dot(half + col) : 0;
  if (threadIdx.x % 32) return;
  if (p.gated) {
    store(p.y.data, p.y.dtype, row * p.y.stride + col, activated(p.activation, sum) * up);
  } else {
    finish(p, row, col, sum);
  }
}

}  // namespace

void matvec(const Launch& at, const Product& p) {
  launch(at, p.x.rows > 8 ? matvec_kernel<true> : matvec_kernel<false>, grid2(p.gated ? div_up(p.out / 2, 8) : div_up(p.out, 16)), kThreads,
         0, p);
}

void product_any(const Launch& at, const Product& p) {
  launch(at, product_any_kernel, grid2(div_up(p.gated ? p.out / 2 : p.out, 8), p.x.rows), 256, 0, p);
}

}  // namespace mr::cuda
