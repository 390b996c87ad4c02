// The kernels compiled for AVX-512 VNNI: only code of internal linkage, and the tables that export it.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // false, in gcc 12's own immintrin.h
#pragma GCC diagnostic ignored "-Wuninitialized"
#include "backend/cpu/kernels.h"
#include "backend/cpu/linear.inl"
#include "backend/cpu/probe.inl"
#include "backend/cpu/vec.h"

namespace mr {

const LinearKernels& linear_kernels_vnni() { return linear::kKernels; }

const ProbeKernels& probe_kernels_vnni() { return probe::kKernels; }

}  // namespace mr
