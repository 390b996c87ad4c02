// The greedy choice of every row, with its log-probability, and made-up weights.
#include "backend/cuda/device.cuh"

namespace mr::cuda {

namespace {

constexpr int kThreads = 1024;

struct Best {
  float logit;
  int token;
  float sum;  // of exp(logit - largest)
};

__device__ Best merge(Best a, Best b) {
  bool first = a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
  Best best = first ? a : b, other = first ? b : a;
  best.sum += other.sum == 0 ? 0.0f : other.sum * __expf(other.logit - best.logit);
  return best;
}

// One block a row of logits; ties go to the lower id.
__global__ void __launch_bounds__(kThreads) greedy_kernel(Matrix logits, const Out* out, Choice* choice, int32_t* sampled) {
  __shared__ Best shared[32];
  launch_next();
  wait_before();
  const int row = blockIdx.x;
  if (out && out[row] != Out::token) {
    if (threadIdx.x == 0) choice[row] = {-1, 0};
    return;
  }
  const float* x = static_cast<const float*>(logits.data) + row * logits.stride;
  Best best{-INFINITY, INT32_MAX, 0};
  auto take = [&](float v, int i) {
    if (v > best.logit) {
      best.sum = best.sum * __expf(best.logit - v) + 1, best.logit = v, best.token = i;
    } else if (v > -INFINITY) {
      best.sum += __expf(v - best.logit);
    }
  };
  const int n = int(logits.cols);
  if (n % 4 == 0 && logits.stride % 4 == 0) {
    for (int i = threadIdx.x * 4; i < n; i += kThreads * 4) {
      float4 v = *reinterpret_cast<const float4*>(x + i);
      take(v.x, i), take(v.y, i + 1), take(v.z, i + 2), take(v.w, i + 3);
    }
  } else {
    for (int i = threadIdx.x; i < n; i += kThreads) take(x[i], i);
  }
  auto over_warp = [&] {
    for (int i = 16; i; i >>= 1)
      best = merge(best, {__shfl_xor_sync(~0u, best.logit, i), __shfl_xor_sync(~0u, best.token, i), __shfl_xor_sync(~0u, best.sum, i)});
  };
  over_warp();
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = best;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  best = shared[threadIdx.x];
  over_warp();
  if (threadIdx.x) return;
  int token = fabsf(best.logit) < INFINITY ? best.token : -1;
  choice[row] = {token, -logf(best.sum)};
  sampled[row] = token;
}

__global__ void fill_random_kernel(bf16* to, int64_t n, uint64_t seed, float spread) {
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += int64_t(gridDim.x) * blockDim.x) {
    uint64_t z = seed + 0x9e3779b97f4a7c15u * uint64_t(i + 1);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    to[i] = __float2bfloat16(spread * (float(int64_t(z ^ (z >> 31)) >> 40) * 0x1p-23f));
  }
}

}  // namespace

void greedy(const Launch& at, Matrix logits, const Out* out, Choice* choice, int32_t* sampled) {
  launch(at, greedy_kernel, grid2(logits.rows), kThreads, 0, logits, out, choice, sampled);
}

void fill_random(const Launch& at, void* to, int64_t n, uint64_t seed, float spread) {
  fill_random_kernel<<<at.n_sm * 8, 256, 0, at.stream>>>(static_cast<bf16*>(to), n, seed, spread);
}

}  // namespace mr::cuda
