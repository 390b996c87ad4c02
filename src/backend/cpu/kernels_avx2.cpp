// The kernels compiled for AVX2: only code of internal linkage, and the tables that export it.
#include "backend/cpu/attention.inl"
#include "backend/cpu/kernels.h"
#include "backend/cpu/linear.inl"
#include "backend/cpu/probe.inl"
#include "backend/cpu/vec.h"

namespace mr {

const LinearKernels& linear_kernels_avx2() { return linear::kKernels; }
const OpKernels& op_kernels_avx2() { return ops::kKernels; }

const ProbeKernels& probe_kernels_avx2() { return probe::kKernels; }

}  // namespace mr
