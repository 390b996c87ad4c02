// Experts: the choice of a few for every row, their products, and the weighted sum.
#include "backend/cuda/device.cuh"

namespace mr::cuda {

namespace {

// One warp a row: k times the largest that is left, ties to the lower id. A chosen logit becomes NaN.
__global__ void route_kernel(Matrix expert, Matrix weight, Matrix logits, bool renormalize) {
  launch_next();
  wait_before();
  const int row = blockIdx.x, lane = threadIdx.x, n = int(logits.cols), k = int(expert.cols);
  float* x = static_cast<float*>(logits.data) + row * logits.stride;
  float largest = 0, total = 0;
  for (int j = 0; j < k; j++) {
    float best = -INFINITY;
    int id = n;
    for (int i = lane; i < n; i += 32)
      if (x[i] > best || (x[i] == best && i < id)) best = x[i], id = i;
    for (int d = 16; d; d >>= 1) {
      float other = __shfl_xor_sync(~0u, best, d);
      int other_id = __shfl_xor_sync(~0u, id, d);
      if (other > best || (other == best && other_id < id)) best = other, id = other_id;
    }
    if (j == 0) {
      largest = best;
      for (int i = lane; i < n && !renormalize; i += 32) total += expf(x[i] - largest);
      total = warp_sum(total);
    }
    if (renormalize) total += expf(best - largest);
    if (lane == 0) {
      static_cast<int32_t*>(expert.data)[row * expert.stride + j] = id;
      static_cast<float*>(weight.data)[row * weight.stride + j] = expf(best - largest);
    }
    __syncwarp();
    if (lane == 0 && id < n) x[id] = NAN;
    __syncwarp();
  }
  for (int j = lane; j < k; j += 32) static_cast<float*>(weight.data)[row * weight.stride + j] /= total;
}

// One warp an output of a pair of row and expert, two outputs apart by the block.
__global__ void grouped_kernel(Matrix out, Matrix x, const void* const* weights, int64_t in, Matrix expert) {
  launch_next();
  wait_before();
  const int64_t pair = blockIdx.y, k = expert.cols, t = pair / k, col = int64_t(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
  if (col >= out.cols) return;
  const int32_t e = static_cast<const int32_t*>(expert.data)[t * expert.stride + pair % k];
  const int64_t from = (x.rows == out.rows ? pair : t) * x.stride, lane = threadIdx.x % 32;
  float sum = 0;
  if (in % 8 == 0 && x.stride % 8 == 0 && reinterpret_cast<uintptr_t>(x.data) % 16 == 0) {
    for (int64_t i = lane * 8; i < in; i += 256) {
      float a[8], w[8];
      load_n<8>(x.data, x.dtype, from + i, a);
      load_n<8>(weights[e], DType::bf16, col * in + i, w);
      for (int j = 0; j < 8; j++) sum += a[j] * w[j];
    }
  } else {
    for (int64_t i = lane; i < in; i += 32) sum += load(x.data, x.dtype, from + i) * load(weights[e], DType::bf16, col * in + i);
  }
  sum = warp_sum(sum);
  if (lane == 0) store(out.data, out.dtype, pair * out.stride + col, sum);
}

__global__ void combine_kernel(Matrix out, Matrix x, Matrix weight) {
  launch_next();
  wait_before();
  const int64_t t = blockIdx.y, i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x, k = weight.cols;
  if (i >= out.cols) return;
  float sum = 0;
  for (int64_t j = 0; j < k; j++)
    sum += static_cast<const float*>(weight.data)[t * weight.stride + j] * load(x.data, x.dtype, (t * k + j) * x.stride + i);
  store(out.data, out.dtype, t * out.stride + i, sum);
}

}  // namespace

void route(const Launch& at, Matrix expert, Matrix weight, Matrix logits, bool renormalize) {
  launch(at, route_kernel, grid2(logits.rows), 32, 0, expert, weight, logits, renormalize);
}
void grouped(const Launch& at, Matrix out, Matrix x, const void* const* weights, int64_t in, Matrix expert) {
  launch(at, grouped_kernel, grid2(div_up(out.cols, 8), out.rows), 256, 0, out, x, weights, in, expert);
}
void combine(const Launch& at, Matrix out, Matrix x, Matrix weight) {
  launch(at, combine_kernel, grid2(div_up(out.cols, 256), out.rows), 256, 0, out, x, weight);
}

}  // namespace mr::cuda
