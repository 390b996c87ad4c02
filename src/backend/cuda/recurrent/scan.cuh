// Shared by the scans: slot addresses, a row's step size, the epilogue of a row; and a short convolution of one row.
#pragma once

#include "backend/cuda/device/device.cuh"
#include "backend/cuda/gemm/gemm.h"
#include "backend/cuda/recurrent/recurrent.h"
#include "backend/cuda/rows/half_norm.cuh"

namespace mr::cuda {

__device__ inline float* slot_at(const Slots& s, int32_t unit) { return reinterpret_cast<float*>(s.base + unit * s.unit_bytes); }

// A load of one f32 or bf16 value, split into the load and the conversion: without a branch between them, several can be in flight.
__device__ inline uint32_t ask(const Matrix& m, int64_t i) {
  const bool wide = m.dtype == DType::f32;
  uint32_t bits;
  asm volatile(
      "{.reg .pred wide;\n"
      "setp.ne.b32 wide, %2, 0;\n"
      "@wide ld.global.u32 %0, [%1];\n"
      "@!wide ld.global.u16 %0, [%1];}"
      : "=r"(bits)
      : "l"(static_cast<const char*>(m.data) + i * (wide ? 4 : 2)), "r"(int(wide)));
  return bits;
}
__device__ inline float got(const Matrix& m, uint32_t bits) { return __uint_as_float(m.dtype == DType::f32 ? bits : bits << 16); }
__device__ inline float element(const Matrix& m, int64_t i) { return got(m, ask(m, i)); }

// The step size of dt: softplus if there is a bias.
__device__ inline float step_of(const ScanRows& s, float dt, int col) { return s.dt_bias ? softplus_of(dt + s.dt_bias[col]) : dt; }
__device__ inline float step_at(const ScanRows& s, int64_t row, int col) { return step_of(s, element(s.dt, row * s.dt.stride + col), col); }

// The gate that multiplies the result.
__device__ inline uint32_t ask_gate(const ScanRows& s, int64_t row, int col) {
  return s.gate.data ? ask(s.gate, row * s.gate.stride + col) : 0;
}
__device__ inline float got_gate(const ScanRows& s, uint32_t bits) {
  return s.gate.data ? activated(Activation::silu, got(s.gate, bits)) : 1.0f;
}
__device__ inline float write_at(const ScanRows& s, int64_t row, int col, float y, uint32_t gate) {
  y *= got_gate(s, gate);
  store(s.out.data, s.out.dtype, row * s.out.stride + col, y);
  return y;
}
// First half of the next norm, if requested, by a warp that holds kScanPart consecutive columns.
__device__ inline void half_norm_at(const ScanRows& s, int64_t row, int col, float y) {
  if (!s.next.x) return;
  put_half_of(s.next, row * s.out.cols + col, y, col);
  const float squares = warp_sum(y * y);
  if (threadIdx.x % 32 == 0) put_squares(s.next, row, col / kScanPart, int(s.next.parts), squares);
}
__device__ inline void write_at(const ScanRows& s, int64_t row, int col, float y) { write_at(s, row, col, y, ask_gate(s, row, col)); }

__device__ inline float4 times(float a, float4 x) { return {a * x.x, a * x.y, a * x.z, a * x.w}; }
__device__ inline float4 fma4(float a, float4 x, float4 y) {
  return {fmaf(a, x.x, y.x), fmaf(a, x.y, y.y), fmaf(a, x.z, y.z), fmaf(a, x.w, y.w)};
}
// Sums over the lanes of a warp whose distance is a multiple of `apart` (a power of two).
__device__ inline float4 over_lanes(float4 sum, int apart) {
  for (int m = apart; m < 32; m *= 2) {
    sum.x += __shfl_xor_sync(~0u, sum.x, m);
    sum.y += __shfl_xor_sync(~0u, sum.y, m);
    sum.z += __shfl_xor_sync(~0u, sum.z, m);
    sum.w += __shfl_xor_sync(~0u, sum.w, m);
  }
  return sum;
}
// Advances four states of a channel by one row; returns their part of the output.
__device__ inline float diag_update(float4& h, float4 rate, float step, float in, float4 b, float4 c) {
  const float gain = step * in;
  h.x = fmaf(exp2_fast(step * rate.x), h.x, gain * b.x);
  h.y = fmaf(exp2_fast(step * rate.y), h.y, gain * b.y);
  h.z = fmaf(exp2_fast(step * rate.z), h.z, gain * b.z);
  h.w = fmaf(exp2_fast(step * rate.w), h.w, gain * b.w);
  return fmaf(c.w, h.w, fmaf(c.z, h.z, fmaf(c.y, h.y, c.x * h.x)));
}
// Sums over the `parts` consecutive lanes that hold a channel.
__device__ inline float over_parts(float sum, int parts) {
  for (int k = parts / 2; k; k /= 2) sum += __shfl_xor_sync(~0u, sum, k);
  return sum;
}
// Rates for exp2.
__device__ inline float4 rates_at(const float* a, int64_t place) { return times(1.44269504f, *reinterpret_cast<const float4*>(a + place)); }

// Offsets of low, B and C in a row of SelectCall::dbc.
struct Segments {
  int rank, n;
  __device__ explicit Segments(const SelectCall& s) : rank(s.rank), n(s.n_state) {}
  __device__ int width() const { return rank + 2 * n; }
  __device__ int of(int j) const { return j < rank ? 0 : j < rank + n ? 1 : 2; }
};
// The normalized values of such a row, by one warp.
struct SelectRow {
  static constexpr int kEach = kSelectShared / 32;
  float value[kEach], by[3];

  template <class Load>
  __device__ void load(const SelectCall& s, const Segments& at, Load load) {
    const int lane = threadIdx.x % 32;
    float sum[3] = {};
#pragma unroll
    for (int k = 0; k < kEach; k++) value[k] = k * 32 + lane < at.width() ? load(k * 32 + lane) : 0.0f;
#pragma unroll
    for (int k = 0; k < kEach; k++) {
      const int of = at.of(k * 32 + lane);
#pragma unroll
      for (int m = 0; m < 3; m++) sum[m] += of == m ? value[k] * value[k] : 0.0f;
    }
#pragma unroll
    for (int m = 0; m < 3; m++) by[m] = s.norms ? rsqrtf(warp_sum(sum[m]) / float(m == 0 ? at.rank : at.n) + s.eps[m]) : 1.0f;
  }
  template <class WeightOf>  // weight_of(k, j): norm weight of a lane's k-th value, the row's j-th
  __device__ void put(const Segments& at, float* to, WeightOf weight_of) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < kEach; k++) {
      const int j = k * 32 + lane, of = at.of(j);
      if (j < at.width()) to[j] = value[k] * (of == 0 ? by[0] : of == 1 ? by[1] : by[2]) * weight_of(k, j);
    }
  }
};

// A short convolution of one output; its channel's past inputs are prefetched before the output is computed.
struct Tap {
  bool there = false;
  int64_t channel = 0;
  int32_t to = -1;
  float before[kConvWidth - 1], weight[kConvWidth], bias = 0;

  __device__ void ask(const Product& p, int64_t output) { ask(p, output, p.conv.slots.src[0], p.conv.slots.dst[0]); }
  __device__ void ask(const Product& p, int64_t output, int32_t from, int32_t dst) {
    channel = output - p.conv.first;
    there = channel >= 0 && channel < p.conv.n;
    if (!there) return;
    const float *slot = slot_at(p.conv.slots, from) + channel, *w = p.conv.weight + channel * kConvWidth;
    to = dst;
#pragma unroll
    for (int j = 0; j < kConvWidth - 1; j++) before[j] = slot[j * p.conv.n];
#pragma unroll
    for (int j = 0; j < kConvWidth; j++) weight[j] = w[j];
    if (p.conv.bias) bias = p.conv.bias[channel];
  }
  __device__ void write(const Product& p, float y) const {
    if (p.y.dtype == DType::bf16) y = __bfloat162float(__float2bfloat16(y));
    float sum = bias, *slot = slot_at(p.conv.slots, max(to, 0)) + channel;
#pragma unroll
    for (int j = 0; j < kConvWidth; j++) {
      const float x = j + 1 < kConvWidth ? before[j] : y;
      sum = fmaf(weight[j], x, sum);
      if (j > 0 && to >= 0) slot[(j - 1) * p.conv.n] = x;
    }
    store(p.conv.out.data, p.conv.out.dtype, channel, activated(p.conv.act, sum));
  }
};

// Whether it can be read four values at a time.
inline bool vectors(const Matrix& m) { return m.dtype == DType::bf16 && reinterpret_cast<uintptr_t>(m.data) % 8 == 0 && m.stride % 4 == 0; }
inline bool by_four(const Slots& s, int64_t n) {
  return n % 4 == 0 && reinterpret_cast<uintptr_t>(s.base) % 16 == 0 && s.unit_bytes % 16 == 0;
}

// outer_stream.cu: outer_scan() of one row per sequence, for many sequences, on Hopper.
bool can_stream(const OuterShape&);  // heads of this shape; slots by_four()
void outer_stream(const Launch&, const ScanRows&, const OuterShape&, const Slots&);
// chunks.cu: outer_scan() of at least eight rows per sequence on average, on the tensor cores; the bits depend on how rows are batched.
bool can_chunk(const ScanRows&, const OuterShape&, const Slots&, const Recurrence&);
void outer_chunks(const Launch&, const ScanRows&, const OuterShape&, const Slots&, const Recurrence&);

}  // namespace mr::cuda
