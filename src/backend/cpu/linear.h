// Matrix products on the CPU: threading, scratch and the choice of kernel. linear_kernels.h fixes the arithmetic.
#pragma once

#include "backend/backend.h"
#include "backend/cpu/linear_kernels.h"

namespace mr {

// Memory that products reuse: rounded activations, and what each worker needs. Grows to the largest product seen.
struct LinearScratch {
  Buffer rounded, workers;
  Buffer ahead;  // activations of the product after this one

  int64_t bytes() const { return int64_t(rounded.size() + workers.size() + ahead.size()); }
};

// What a LinearScratch grows to at most, with the products that were counted.
class LinearNeeds {
 public:
  void count(const Weight&, int64_t rows, const LinearKernels&, int n_workers);  // of so many rows or fewer, gated or not
  int64_t bytes() const { return 2 * rounded_ + workers_; }                      // rounded for this product and for the next

 private:
  int64_t rounded_ = 0, workers_ = 0;
};

const LinearKernels& linear_kernels(Isa);

// Rounds what a product will read where it is made, part by part, instead of in a pass of its own.
class RoundAhead {
 public:
  RoundAhead() = default;  // does nothing, like that of readers which need no rounding
  // Of `rows` rows of inputs that cpu_linear() with this weight, given this, will read next, and nobody changes before.
  RoundAhead(const Weight& reader, int64_t rows, const LinearKernels&, LinearScratch&);
  // Inputs [first, first + n) of a row: multiples of kBlock.
  void operator()(const float* x, int64_t row, int64_t first, int64_t n) const {
    if (kernel_) kernel_->round(x, in_, row, first, n, rounded_);
  }
  // For the product that reads them with this kernel: all of them, or null where they were not rounded for it.
  const std::byte* take(const LinearKernel&, LinearScratch&) const;

 private:
  const LinearKernel* kernel_ = nullptr;
  int64_t in_ = 0;
  std::byte* rounded_ = nullptr;
};

using PrepareRow = FunctionRef<void(int64_t row)>;

// How a product comes by its rows of x.
struct RowsOfX {
  const PrepareRow* prepare = nullptr;  // makes a row, which is not there before; null: they are there
  const RoundAhead* rounded = nullptr;  // they are rounded already; null: they are not
};

// out [T, out] = residual + scale * (x [T, in] . weight^T + bias). Rows of out, x and the residual may have any stride.
void cpu_linear(Tensor out, Tensor x, const Weight&, const Epilogue&, ThreadPool&, const LinearKernels&, LinearScratch&,
                const RowsOfX& = {});

// out [T, F] = act(first half) * second half of x . weight^T [T, 2 F]. F is a multiple of kPanel. reader: of out; what it will read is
// rounded on the way, where that can be, and handed to it as the result.
using GateFunction = void (*)(float* out, const float* gate, const float* up, int64_t n, int act);
RoundAhead cpu_linear_gate(Tensor out, Tensor x, const Weight&, GateFunction, int act, ThreadPool&, const LinearKernels&, LinearScratch&,
                           const Weight* reader = nullptr, const RowsOfX& = {});

}  // namespace mr
