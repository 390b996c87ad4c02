// The epilogue for the first half of an RMS norm: y times the norm's weight, as bf16, and partial sums of y².
// Fixed parts, in deterministic mode, are summed in one order by every kernel: columns 8, 4, 2 and 1 apart.
#pragma once

#include "backend/cuda/device/device.cuh"
#include "backend/cuda/rows/rows.h"

namespace mr::cuda {

// weight: the norm's weight of this column, prefetched; ignored if the norm has none.
__device__ inline void put_half(const HalfNorm& next, int64_t i, float y, float weight) {
  static_cast<bf16*>(next.x)[i] = __float2bfloat16(y * (next.weight ? next.offset + weight : 1.0f));
}
__device__ inline void put_half_of(const HalfNorm& next, int64_t i, float y, int64_t column) {
  put_half(next, i, y, next.weight ? next.weight[column] : 0.0f);
}
// Writes the partial sum `part` of the n that a row has, and zeros every n-th entry after it up to next.parts. Lanes that call it
// together share the work.
__device__ inline void put_squares(const HalfNorm& next, int64_t row, int part, int n, float sum, int lane = 0, int lanes = 1) {
  for (int at = part + lane * n; at < int(next.parts); at += lanes * n) next.squares[row * next.parts + at] = at == part ? sum : 0.0f;
}
// A fixed part, by the sixteen consecutive lanes that hold its columns; y = 0 beyond the last column.
__device__ inline void put_fixed_squares(const HalfNorm& next, int64_t row, int64_t column, float y) {
  const unsigned lane = threadIdx.x % 32;
  float sum = __fmul_rn(y, y);
#pragma unroll
  for (int i = kFixedPart / 2; i; i >>= 1) sum += __shfl_xor_sync(0xffffu << (lane & 16), sum, i);
  if (lane % kFixedPart == 0 && column / kFixedPart < next.parts) next.squares[row * next.parts + column / kFixedPart] = sum;
}
// A row's sum of squares from its parts, by eight consecutive lanes. four(i): parts 4 i to 4 i + 3, zeros beyond the last.
template <class Four>
__device__ float squares_of(int parts, Four four) {
  const unsigned lane = threadIdx.x % 32;
  float sum = 0;
#pragma unroll 8
  for (int i = lane % 8; 4 * i < parts; i += 8) {
    const float4 v = four(i);
    sum += (v.x + v.y) + (v.z + v.w);
  }
  for (int i = 4; i; i >>= 1) sum += __shfl_xor_sync(0xffu << (lane & 24), sum, i);
  return sum;
}
// Such a four(i) from single parts: part(k), of n.
template <class Part>
__device__ float4 four_parts(int n, int i, Part part) {
  auto at = [&](int k) { return k < n ? part(k) : 0.0f; };
  return make_float4(at(4 * i), at(4 * i + 1), at(4 * i + 2), at(4 * i + 3));
}

}  // namespace mr::cuda
