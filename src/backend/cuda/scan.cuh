// What the scans share: where slots lie, a row's step, and how a row's result is written.
#pragma once

#include "backend/cuda/device.cuh"

namespace mr::cuda {

__device__ inline float* slot_at(const Slots& s, int32_t unit) { return reinterpret_cast<float*>(s.base + unit * s.unit_bytes); }

__device__ inline float step_at(const ScanRows& s, int64_t row, int col) {
  const float v = load(s.dt.data, s.dt.dtype, row * s.dt.stride + col);
  if (!s.dt_bias) return v;
  const float x = v + s.dt_bias[col];
  return fmaxf(x, 0) + log1pf(expf(-fabsf(x)));
}
// What the result is multiplied by.
__device__ inline float gate_at(const ScanRows& s, int64_t row, int col) {
  return s.gate.data ? activated(Activation::silu, load(s.gate.data, s.gate.dtype, row * s.gate.stride + col)) : 1.0f;
}
__device__ inline void write_at(const ScanRows& s, int64_t row, int col, float y) {
  store(s.out.data, s.out.dtype, row * s.out.stride + col, y * gate_at(s, row, col));
}

}  // namespace mr::cuda
