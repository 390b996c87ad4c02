// Matrix products on the CPU: threading, scratch and the choice of kernel. linear_kernels.h fixes the arithmetic.
#pragma once

#include "backend/backend.h"
#include "backend/cpu/linear_kernels.h"

namespace mr {

// Memory that products reuse: rounded activations, and widened panels of each worker. Grows to the largest product seen.
struct LinearScratch {
  Buffer rounded, panels;
};

const LinearKernels& linear_kernels(Isa);

// out [T, out] = residual + scale * (x [T, in] . weight^T + bias). Rows of out, x and the residual may have any stride.
void cpu_linear(Tensor out, Tensor x, const Weight&, const Epilogue&, ThreadPool&, const LinearKernels&, LinearScratch&);

// out [T, F] = act(first half) * second half of `both` [T, 2 F] = x . weight^T. F is a multiple of kPanel.
using GateFunction = void (*)(float* out, const float* gate, const float* up, int64_t n, int act);
void cpu_linear_gate(Tensor out, Tensor both, Tensor x, const Weight&, GateFunction, int act, ThreadPool&, const LinearKernels&,
                     LinearScratch&);

}  // namespace mr
