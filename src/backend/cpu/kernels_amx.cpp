// The kernels compiled for AMX: only code of internal linkage, and the tables that export it.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // false, in gcc 12's own immintrin.h
#pragma GCC diagnostic ignored "-Wuninitialized"
#include "backend/cpu/kernels.h"
#include "backend/cpu/linear_amx.inl"
#include "backend/cpu/probe.inl"
#include "backend/cpu/vec.h"

namespace mr {

const LinearKernels& linear_kernels_amx() { return amx::Kernels<Tiles>::all; }

const ProbeKernels& probe_kernels_amx() { return probe::kKernels; }

}  // namespace mr
