// The epilogue that does half of a root mean square norm: y times the norm's weight, as bf16, and the squares of y summed in parts.
// Fixed parts, of deterministic mode, are summed in one order by whoever has them: columns 8, 4, 2 and 1 apart.
#pragma once

#include "backend/cuda/device/device.cuh"
#include "backend/cuda/rows/rows.h"

namespace mr::cuda {

// weight: the norm's of this column, loaded ahead; any number where the norm has none.
__device__ inline void put_half(const HalfNorm& next, int64_t i, float y, float weight) {
  static_cast<bf16*>(next.x)[i] = __float2bfloat16(y * (next.weight ? next.offset + weight : 1.0f));
}
__device__ inline void put_half_of(const HalfNorm& next, int64_t i, float y, int64_t column) {
  put_half(next, i, y, next.weight ? next.weight[column] : 0.0f);
}
// The squares of part `part` of a row of which n are made; of the parts that nobody makes, the part-th of every n becomes zero. Lanes
// that call it together share the writing.
__device__ inline void put_squares(const HalfNorm& next, int64_t row, int part, int n, float sum, int lane = 0, int lanes = 1) {
  for (int at = part + lane * n; at < int(next.parts); at += lanes * n) next.squares[row * next.parts + at] = at == part ? sum : 0.0f;
}
// A fixed part, by the sixteen neighbouring lanes that have its columns; a column that is not there has y = 0.
__device__ inline void put_fixed_squares(const HalfNorm& next, int64_t row, int64_t column, float y) {
  const unsigned lane = threadIdx.x % 32;
  float sum = __fmul_rn(y, y);
#pragma unroll
  for (int i = kFixedPart / 2; i; i >>= 1) sum += __shfl_xor_sync(0xffffu << (lane & 16), sum, i);
  if (lane % kFixedPart == 0 && column / kFixedPart < next.parts) next.squares[row * next.parts + column / kFixedPart] = sum;
}
// A row's squares from its parts, by eight neighbouring lanes.
template <class Part>
__device__ float squares_of(int parts, Part part) {
  const unsigned lane = threadIdx.x % 32;
  float sum = 0;
#pragma unroll 8
  for (int i = lane % 8; i < parts; i += 8) sum += part(i);
  for (int i = 4; i; i >>= 1) sum += __shfl_xor_sync(0xffu << (lane & 24), sum, i);
  return sum;
}

}  // namespace mr::cuda
