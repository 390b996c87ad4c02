// The loops that probe.h measures with, one table per instruction set.
#pragma once

#include <cstdint>

namespace mr {

struct ProbeKernels {
  float (*read)(const float* p, int64_t n);  // touches all of p, returns something that depends on it
  // Both run `rounds` dependent rounds of as many independent chains as hide the latency; they return multiply-adds done.
  double (*fma)(int64_t rounds, float* sink);  // f32
  double (*dot)(int64_t rounds, float* sink);  // 16-bit activations times 4- to 8-bit weights, as quantized layers do it
};
const ProbeKernels& probe_kernels_scalar();
const ProbeKernels& probe_kernels_avx2();
const ProbeKernels& probe_kernels_avx512();
const ProbeKernels& probe_kernels_vnni();
const ProbeKernels& probe_kernels_amx();

}  // namespace mr
