// The first half of an RMS norm as a separate kernel, where no epilogue does it. Reads x once, writes it once as bf16.
#include "backend/cuda/rows/half_norm.cuh"

namespace mr::cuda {

namespace {

constexpr int kThreads = 256;

// Four consecutive columns per thread, so that four lanes share a part. One block per row.
template <bool Fours>  // vectorized loads and stores
__global__ void __launch_bounds__(kThreads) half_norm_kernel(Matrix x, HalfNorm next) {
  extern __shared__ float part[];
  launch_next();
  const int n = int(x.cols), parts = (n + kFixedPart - 1) / kFixedPart;
  const int64_t row = blockIdx.x;
  auto take = [&](int first) {
    float y[4] = {};
    if (Fours && first < n) {
      const float4 v = *reinterpret_cast<const float4*>(static_cast<const float*>(x.data) + row * x.stride + first);
      const float4 w = next.weight ? *reinterpret_cast<const float4*>(next.weight + first) : float4{};
      auto half = [&](float y, float w) { return y * (next.weight ? next.offset + w : 1.0f); };
      y[0] = v.x;
      y[1] = v.y;
      y[2] = v.z;
      y[3] = v.w;
      *reinterpret_cast<uint2*>(static_cast<bf16*>(next.x) + row * n + first) =
          make_uint2(pack(half(v.x, w.x), half(v.y, w.y)), pack(half(v.z, w.z), half(v.w, w.w)));
    }
#pragma unroll
    for (int e = 0; !Fours && e < 4; e++) {
      if (first + e >= n) break;
      y[e] = load(x.data, x.dtype, row * x.stride + first + e);
      put_half_of(next, row * n + first + e, y[e], first + e);
    }
#pragma unroll
    for (float& e : y) e = __fmul_rn(e, e);
#pragma unroll
    for (int lanes = 2; lanes; lanes >>= 1)
#pragma unroll
      for (float& e : y) e += __shfl_xor_sync(~0u, e, lanes);
    if (threadIdx.x % 4 == 0 && first < n) part[first / kFixedPart] = (y[0] + y[2]) + (y[1] + y[3]);
  };
  wait_before();
  for (int from = 0; from < n; from += 4 * kThreads) take(from + 4 * int(threadIdx.x));
  __syncthreads();
  if (next.parts > 1) {
    for (int i = threadIdx.x; i < int(next.parts); i += kThreads) next.squares[row * next.parts + i] = i < parts ? part[i] : 0.0f;
  } else if (threadIdx.x < 32) {
    const float sum = squares_of(parts, [&](int i) { return four_parts(parts, i, [&](int k) { return part[k]; }); });
    if (threadIdx.x == 0) next.squares[row] = sum;
  }
}

}  // namespace

void half_norm(const Launch& at, Matrix x, const HalfNorm& next) {
  const bool fours = x.dtype == DType::f32 && x.cols % 4 == 0 && aligned(x) && reinterpret_cast<uintptr_t>(next.weight) % 16 == 0;
  launch(at, fours ? half_norm_kernel<true> : half_norm_kernel<false>, grid2(x.rows), kThreads, size_t(div_up(x.cols, kFixedPart)) * 4, x,
         next);
}

}  // namespace mr::cuda
