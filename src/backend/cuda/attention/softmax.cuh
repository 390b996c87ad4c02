// Partial softmaxes over parts of a head's keys, and their merge.
#pragma once

#include "backend/cuda/attention/attention.h"
#include "backend/cuda/device/device.cuh"

namespace mr::cuda {

inline constexpr float kLog2e = 1.44269504f;

// A partial result of a head: its values, then the largest score and the sum of weights.
template <int D>
inline constexpr int kPart = D + kPartExtra;

// A partial softmax for two consecutive dimensions: the largest score (base 2), the sum of weights, the values.
struct Found {
  float most = -INFINITY, total = 0, x = 0, y = 0;
};

// Merges n partial softmaxes into f, first to last; some may be empty. kAtOnce of them are loaded at a time.
// weight(i): the largest score and the sum of weights; values(i): the values.
template <int kAtOnce, class Weight, class Values>
__device__ Found merged(int n, Weight weight, Values values, Found f = {}) {
#pragma unroll 1
  for (int from = 0; from < n; from += kAtOnce) {
    float2 ml[kAtOnce], o[kAtOnce];
    float top = f.most;
#pragma unroll
    for (int j = 0; j < kAtOnce; j++) {
      ml[j] = make_float2(-INFINITY, 0);
      o[j] = make_float2(0, 0);
      if (from + j < n) {
        ml[j] = weight(from + j);
        o[j] = values(from + j);
      }
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; j++) top = fmaxf(top, ml[j].x);
    const float base = top == -INFINITY ? 0.0f : top, shrink = exp2_fast(f.most - base);
    f = {top, f.total * shrink, f.x * shrink, f.y * shrink};
#pragma unroll
    for (int j = 0; j < kAtOnce; j++) {
      const float w = exp2_fast(ml[j].x - base);
      f.total += w * ml[j].y;
      f.x += w * o[j].x;
      f.y += w * o[j].y;
    }
  }
  return f;
}

// The weights of two partial softmaxes in their merge; most, other: their largest scores, of which `most` becomes the larger. Deterministic
// attention merges so, one at a time: every operation is rounded as written.
__device__ inline float2 merge_weights(float& most, float other) {
  const float top = fmaxf(most, other), base = top == -INFINITY ? 0.0f : top;
  const float2 by = make_float2(exp2_fast(most - base), exp2_fast(other - base));
  most = top;
  return by;
}
__device__ inline float merge_sums(float a, float b, float2 by) { return fmaf(a, by.x, __fmul_rn(b, by.y)); }

// A score below a cap: cap * tanh(x * scale / cap), with tanh(x) = 1 - 2 / (1 + exp(2 x)); slope: of cap_slope().
__device__ inline float cap_slope(float scale, float cap) { return 2 * kLog2e * scale / cap; }
__device__ inline float capped(float x, float cap, float slope) { return cap - __fdividef(2 * cap, 1 + exp2_fast(x * slope)); }

// Adds the weight of a head's sink, a score without a value, to `total`; returns the factor for the head's values.
__device__ inline float add_sink(float sink, float most, float& total) {
  sink *= kLog2e;
  const float top = fmaxf(most, sink), shrink = exp2_fast(most - top);
  total = fmaf(total, shrink, exp2_fast(sink - top));
  return shrink;
}

// Writes two consecutive dimensions of a head's result.
__device__ inline void write_head(const AttendCall& call, int row, int head, int d, Found f) {
  if (call.sinks) {
    const float shrink = add_sink(call.sinks[head], f.most, f.total);
    f.x *= shrink;
    f.y *= shrink;
  }
  const int64_t to = row * call.out.stride + head * call.out.head_stride + d;
  store(call.out.data, call.out.dtype, to, f.x / f.total);
  store(call.out.data, call.out.dtype, to + 1, f.y / f.total);
}

// Called by one thread of each of n blocks that share a head: releases its block's writes; true for the last, which acquires them all.
__device__ inline bool arrives_last(int32_t* arrived, int n) {
  int32_t before;
  asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], 1;" : "=r"(before) : "l"(arrived) : "memory");
  if (before == n - 1) *arrived = 0;
  return before == n - 1;
}

}  // namespace mr::cuda
