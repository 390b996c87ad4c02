// The kernels compiled for AVX-512: only code of internal linkage, and the tables that export it.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // false, in gcc 12's own immintrin.h
#pragma GCC diagnostic ignored "-Wuninitialized"
#include "backend/cpu/attention.inl"
#include "backend/cpu/kernels.h"
#include "backend/cpu/linear.inl"
#include "backend/cpu/probe.inl"
#include "backend/cpu/vec.h"

namespace mr {

const LinearKernels& linear_kernels_avx512() { return linear::kKernels; }
const OpKernels& op_kernels_avx512() { return ops::kKernels; }

const ProbeKernels& probe_kernels_avx512() { return probe::kKernels; }

}  // namespace mr
