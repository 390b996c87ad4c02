// Shared by all kernels: loads and stores of f32 and bf16, 16-byte vectors, the mma instruction, reductions, and programmatic
// dependent launches. A kernel calls launch_next() once its successor may start, and wait_before() before it first reads anything
// that an earlier kernel wrote; it writes nothing before that.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "backend/cuda/device/device.h"

namespace mr::cuda {

using bf16 = __nv_bfloat16;

// Before Hopper, kernels do not overlap.
__device__ inline void launch_next() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}
__device__ inline void wait_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Attributes of every launch: it may overlap the previous one, and a common split of L1 cache and shared memory, since a kernel with
// a different split cannot start on a multiprocessor before everything that runs there has ended.
inline int common_attributes(const Launch& at, cudaLaunchAttribute (&attribute)[3]) {
  attribute[0].id = cudaLaunchAttributePreferredSharedMemoryCarveout;
  attribute[0].val.sharedMemCarveout = cudaSharedmemCarveoutMaxShared;
  if (!at.overlaps) return 1;
  attribute[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute[1].val.programmaticStreamSerializationAllowed = 1;
  return 2;
}
template <class Kernel>
void allow_shared(Kernel kernel, size_t bytes) {
  if (bytes > 32 << 10) must(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(bytes)));
}

// The one place that launches overlapping kernels. cluster: blocks per cluster along grid.x; 0: no clusters.
template <class... Params, class... Args>
void launch_clusters(const Launch& at, void (*kernel)(Params...), dim3 grid, int cluster, int threads, size_t shared, Args&&... args) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  allow_shared(kernel, shared);
  cudaLaunchAttribute attribute[3]{};
  int n = common_attributes(at, attribute);
  if (cluster > 0) {
    attribute[n].id = cudaLaunchAttributeClusterDimension;
    attribute[n++].val.clusterDim = {unsigned(cluster), 1, 1};
  }
  cudaLaunchConfig_t config{grid, dim3(unsigned(threads)), shared, at.stream, attribute, unsigned(n)};
  if (at.log) at.log->kernel(reinterpret_cast<const void*>(kernel), grid, config.blockDim, shared);
  must(cudaLaunchKernelEx(&config, kernel, Params(args)...));
}

template <class... Params, class... Args>
void launch(const Launch& at, void (*kernel)(Params...), dim3 grid, int threads, size_t shared, Args&&... args) {
  launch_clusters(at, kernel, grid, 0, threads, shared, args...);
}
// An ordinary launch, which overlaps neither the previous nor the next one.
template <class... Params, class... Args>
void launch_after_all(const Launch& at, void (*kernel)(Params...), int blocks, int threads, Args&&... args) {
  if (at.log) at.log->kernel(reinterpret_cast<const void*>(kernel), dim3(unsigned(blocks)), dim3(unsigned(threads)), 0);
  kernel<<<blocks, threads, 0, at.stream>>>(Params(args)...);
  must(cudaGetLastError());
}

inline dim3 grid2(int64_t x, int64_t y = 1) { return dim3(unsigned(x), unsigned(y)); }
inline int64_t div_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

__device__ inline float load(const void* p, DType type, int64_t i) {
  if (type == DType::f32) return static_cast<const float*>(p)[i];
  if (type == DType::bf16) return __bfloat162float(static_cast<const bf16*>(p)[i]);
  return __half2float(static_cast<const __half*>(p)[i]);
}
__device__ inline void store(void* p, DType type, int64_t i, float x) {
  if (type == DType::f32) {
    static_cast<float*>(p)[i] = x;
  } else if (type == DType::bf16) {
    static_cast<bf16*>(p)[i] = __float2bfloat16(x);
  } else {
    static_cast<__half*>(p)[i] = __float2half(x);
  }
}

__device__ inline float low(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ inline float high(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }
__device__ inline uint32_t pack(float a, float b) {
  __nv_bfloat162 v = __floats2bfloat162_rn(a, b);
  return *reinterpret_cast<uint32_t*>(&v);
}

// V consecutive elements; V is 1 or 8, and 8 needs 16-byte alignment.
template <int V>
__device__ inline void load_n(const void* p, DType type, int64_t i, float (&x)[V]) {
  if constexpr (V == 1) {
    x[0] = load(p, type, i);
  } else if (type == DType::f32) {
    float4 a = *reinterpret_cast<const float4*>(static_cast<const float*>(p) + i);
    float4 b = *reinterpret_cast<const float4*>(static_cast<const float*>(p) + i + 4);
    x[0] = a.x;
    x[1] = a.y;
    x[2] = a.z;
    x[3] = a.w;
    x[4] = b.x;
    x[5] = b.y;
    x[6] = b.z;
    x[7] = b.w;
  } else {
    uint4 a = *reinterpret_cast<const uint4*>(static_cast<const bf16*>(p) + i);
    x[0] = low(a.x);
    x[1] = high(a.x);
    x[2] = low(a.y);
    x[3] = high(a.y);
    x[4] = low(a.z);
    x[5] = high(a.z);
    x[6] = low(a.w);
    x[7] = high(a.w);
  }
}
template <int V>
__device__ inline void store_n(void* p, DType type, int64_t i, const float (&x)[V]) {
  if constexpr (V == 1) {
    store(p, type, i, x[0]);
  } else if (type == DType::f32) {
    float4* to = reinterpret_cast<float4*>(static_cast<float*>(p) + i);
    to[0] = make_float4(x[0], x[1], x[2], x[3]);
    to[1] = make_float4(x[4], x[5], x[6], x[7]);
  } else {
    *reinterpret_cast<uint4*>(static_cast<bf16*>(p) + i) =
        make_uint4(pack(x[0], x[1]), pack(x[2], x[3]), pack(x[4], x[5]), pack(x[6], x[7]));
  }
}
// Whether rows of this view can be read 8 elements at a time.
inline bool by_eight(const void* data, DType type, int64_t cols, int64_t stride) {
  return type != DType::f16 && cols % 8 == 0 && stride % 8 == 0 && reinterpret_cast<uintptr_t>(data) % 16 == 0;
}
inline bool by_eight(const Matrix& m) { return by_eight(m.data, m.dtype, m.cols, m.stride); }

// 16 bytes of read-only memory that is read once: bypasses L1.
__device__ inline uint4 stream16(const void* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}

// sum + the dot product of eight elements
__device__ inline float dot8(uint4 w, const float (&x)[8], float sum) {
  sum = fmaf(low(w.x), x[0], sum);
  sum = fmaf(high(w.x), x[1], sum);
  sum = fmaf(low(w.y), x[2], sum);
  sum = fmaf(high(w.y), x[3], sum);
  sum = fmaf(low(w.z), x[4], sum);
  sum = fmaf(high(w.z), x[5], sum);
  sum = fmaf(low(w.w), x[6], sum);
  sum = fmaf(high(w.w), x[7], sum);
  return sum;
}

// c [16, 8] += a [16, 16] b [16, 8], bf16 to f32. Lane 4 g + t holds a: (g, 2t), (g + 8, 2t), (g, 2t + 8), (g + 8, 2t + 8), two
// columns each; b: (2t, g), (2t + 8, g), two rows each; c: (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1).
__device__ inline void mma(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
// The same with rows 8 to 15 of a zero, and of c discarded.
__device__ inline void mma_low(float (&c)[2], uint32_t a0, uint32_t a2, uint32_t b0, uint32_t b1) {
  [[maybe_unused]] float unused0, unused1;
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %5}, {%7, %8}, {%0, %1, %9, %9};"
               : "+f"(c[0]), "+f"(c[1]), "=f"(unused0), "=f"(unused1)
               : "r"(a0), "r"(0), "r"(a2), "r"(b0), "r"(b1), "f"(0.0f));
}

__device__ inline float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ inline float reciprocal_fast(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ inline float softplus_of(float x) { return fmaxf(x, 0) + log1pf(expf(-fabsf(x))); }

__device__ inline float warp_sum(float x) {
  for (int i = 16; i; i >>= 1) x += __shfl_xor_sync(~0u, x, i);
  return x;
}
__device__ inline float warp_max(float x) {
  for (int i = 16; i; i >>= 1) x = fmaxf(x, __shfl_xor_sync(~0u, x, i));
  return x;
}
// The sum over the block, returned to every thread; at most 32 warps. `shared` has 32 floats and may be reused at once.
__device__ inline float block_sum(float x, float* shared) {
  x = warp_sum(x);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
  __syncthreads();
  float sum = 0;
  for (int w = 0; w < int(blockDim.x + 31) / 32; w++) sum += shared[w];
  __syncthreads();
  return sum;
}

__device__ inline float activated(Activation act, float x) {
  switch (act) {
    case Activation::none:
      return x;
    case Activation::silu:
      return x * reciprocal_fast(1 + exp2_fast(-1.44269504f * x));
    case Activation::gelu:
      return 0.5f * x * (1 + erff(x * 0.70710678f));
    case Activation::gelu_tanh:
      return 0.5f * x * (1 + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
    case Activation::relu:
      return fmaxf(x, 0);
    case Activation::relu2:
      return x > 0 ? x * x : 0;
  }
  return x;
}

}  // namespace mr::cuda
