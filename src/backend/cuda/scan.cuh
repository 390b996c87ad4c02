// What the scans share: where slots lie, a row's step, and how a row's result is written.
#pragma once

#include "backend/cuda/device.cuh"

namespace mr::cuda {

__device__ inline float* slot_at(const Slots& s, int32_t unit) { return reinterpret_cast<float*>(s.base + unit * s.unit_bytes); }

// One value of f32 or bf16, asked for, and what came. Between the two others may be asked for: no branch waits.
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

// The step that dt means.
__device__ inline float step_of(const ScanRows& s, float dt, int col) {
  if (!s.dt_bias) return dt;
  const float x = dt + s.dt_bias[col];
  return fmaxf(x, 0) + log1pf(expf(-fabsf(x)));
}
__device__ inline float step_at(const ScanRows& s, int64_t row, int col) { return step_of(s, element(s.dt, row * s.dt.stride + col), col); }

// What the result is multiplied by.
__device__ inline uint32_t ask_gate(const ScanRows& s, int64_t row, int col) {
  return s.gate.data ? ask(s.gate, row * s.gate.stride + col) : 0;
}
__device__ inline float got_gate(const ScanRows& s, uint32_t bits) {
  return s.gate.data ? activated(Activation::silu, got(s.gate, bits)) : 1.0f;
}
__device__ inline void write_at(const ScanRows& s, int64_t row, int col, float y, uint32_t gate) {
  store(s.out.data, s.out.dtype, row * s.out.stride + col, y * got_gate(s, gate));
}
__device__ inline void write_at(const ScanRows& s, int64_t row, int col, float y) { write_at(s, row, col, y, ask_gate(s, row, col)); }

}  // namespace mr::cuda
