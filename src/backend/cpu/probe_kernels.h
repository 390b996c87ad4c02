// The loops that probe.h measures with, one table per instruction set.
#pragma once

#include <cstdint>

namespace mr {

struct ProbeKernels {
  float (*read)(const float* p, int64_t n);  // reads all of p; the result depends on it, so that it is not optimized away
  // Both compute a product `rounds` times in kFloats of memory, 64-byte aligned, and return the multiply-adds done.
  static constexpr int64_t kFloats = 64 << 10;
  double (*floats)(int64_t rounds, float* memory);  // f32
  double (*pairs)(int64_t rounds, float* memory);   // 16-bit activations times 4- to 8-bit weights, as in quantized layers
};
const ProbeKernels& probe_kernels_scalar();
const ProbeKernels& probe_kernels_avx2();
const ProbeKernels& probe_kernels_avx512();
const ProbeKernels& probe_kernels_vnni();
const ProbeKernels& probe_kernels_amx();

}  // namespace mr
