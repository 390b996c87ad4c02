// Matrix products on the CPU: threading, scratch and the choice of kernel. linear_kernels.h fixes the arithmetic.
#pragma once

#include "backend/backend.h"
#include "backend/cpu/linear_kernels.h"

namespace mr {

// Memory that products reuse: rounded activations, and what each worker needs. Grows to the largest product seen.
struct LinearScratch {
  Buffer rounded, workers;
  Buffer ahead;                     // activations of the product after this one
  const float* ahead_of = nullptr;  // which they are; null: none
  const LinearKernel* ahead_by = nullptr;
};

const LinearKernels& linear_kernels(Isa);

// Rounds what a product will read where it is made, part by part, instead of in a pass of its own.
class RoundAhead {
 public:
  RoundAhead() = default;
  // Of x [T, in], which is complete when cpu_linear(…, x, reader, …) comes, and not changed before. Null reader: does nothing, like all
  // readers that need no rounding.
  RoundAhead(const Weight* reader, Tensor x, const LinearKernels&, LinearScratch&);
  // Inputs [first, first + n) of a row: multiples of kBlock.
  void operator()(const float* x, int64_t row, int64_t first, int64_t n) const {
    if (kernel_) kernel_->round(x, in_, row, first, n, rounded_);
  }

 private:
  const LinearKernel* kernel_ = nullptr;
  int64_t in_ = 0;
  std::byte* rounded_ = nullptr;
};

using PrepareRow = FunctionRef<void(int64_t row)>;

// out [T, out] = residual + scale * (x [T, in] . weight^T + bias). Rows of out, x and the residual may have any stride. prepare: makes a
// row of x, which is not there before.
void cpu_linear(Tensor out, Tensor x, const Weight&, const Epilogue&, ThreadPool&, const LinearKernels&, LinearScratch&,
                const PrepareRow* prepare = nullptr);

// out [T, F] = act(first half) * second half of x . weight^T [T, 2 F]. F is a multiple of kPanel. reader: of out, for RoundAhead.
using GateFunction = void (*)(float* out, const float* gate, const float* up, int64_t n, int act);
void cpu_linear_gate(Tensor out, Tensor x, const Weight&, GateFunction, int act, ThreadPool&, const LinearKernels&, LinearScratch&,
                     const Weight* reader = nullptr, const PrepareRow* prepare = nullptr);

}  // namespace mr
