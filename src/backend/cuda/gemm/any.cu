// Products for shapes that no fast kernel supports: one warp per output, any alignment.
#include "backend/cuda/device/device.cuh"
#include "backend/cuda/gemm/gemm.h"

namespace mr::cuda {

namespace {

// Epilogue.
__device__ void finish(const Product& p, int64_t row, int64_t col, float sum) {
  if (p.bias) sum += p.bias[col];
  sum *= p.scale;
  if (p.residual) sum += p.residual[row * p.residual_stride + col];
  store(p.y.data, p.y.dtype, row * p.y.stride + col, sum);
}

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

void product_any(const Launch& at, const Product& p) {
  launch(at, product_any_kernel, grid2(div_up(p.gated ? p.out / 2 : p.out, 8), p.x.rows), 256, 0, p);
}

}  // namespace mr::cuda
