// Matrix products on the CPU: threading, scratch and the choice of kernel. linear_kernels.h fixes the arithmetic.
#pragma once

#include "backend/backend.h"
#include "backend/cpu/linear_kernels.h"
#include "backend/cpu/panels.h"

namespace mr {

// Scratch shared by all products: rounded activations, and each worker's share. Grows to the largest product seen.
struct LinearScratch {
  Buffer rounded, workers;
  Buffer ahead;   // activations of the product after this one
  Buffer values;  // rows as the weight's format rounds them

  int64_t bytes() const { return int64_t(rounded.size() + workers.size() + ahead.size() + values.size()); }
};

// Upper bound of a LinearScratch for the products that were counted.
class LinearNeeds {
 public:
  void count(const Weight&, int64_t rows, const LinearKernels&, int n_workers);  // products of up to `rows` rows, gated or not
  int64_t bytes() const { return 2 * rounded_ + workers_ + values_; }            // rounded for this product and for the next

 private:
  int64_t rounded_ = 0, workers_ = 0, values_ = 0;
};

const LinearKernels& linear_kernels(Isa);

// Rounds a product's inputs part by part where they are produced, instead of in a separate pass.
class RoundAhead {
 public:
  RoundAhead() = default;  // does nothing, as for readers that need no rounding
  // For `rows` rows of inputs to the next cpu_linear() with this weight; they must not change in between.
  RoundAhead(const Weight& reader, int64_t rows, const LinearKernels&, LinearScratch&);
  // Inputs [first, first + n) of a row; both are multiples of kBlock.
  void operator()(const float* x, int64_t row, int64_t first, int64_t n) const {
    if (kernel_) kernel_->round(x, in_, row, first, n, rounded_);
  }
  // The rounded rows for a product with this kernel, or null if they were not rounded for it.
  const std::byte* take(const LinearKernel&, LinearScratch&) const;

 private:
  const LinearKernel* kernel_ = nullptr;
  int64_t in_ = 0;
  std::byte* rounded_ = nullptr;
};

using PrepareRow = FunctionRef<void(int64_t row)>;

// How a product obtains its rows of x.
struct RowsOfX {
  const PrepareRow* prepare = nullptr;  // computes a row of x on demand; null: x is complete
  const RoundAhead* rounded = nullptr;  // already rounded; null: the product rounds them
};

// out [T, out] = residual + scale * (x [T, in] . weight^T + bias). Rows of out, x and the residual may have any stride.
void cpu_linear(Tensor out, Tensor x, const Weight&, const Epilogue&, ThreadPool&, const LinearKernels&, LinearScratch&,
                const RowsOfX& = {});

// out [T, F] = act(first half) * second half of x . weight^T [T, 2 F]. F is a multiple of kPanel. reader: the next product, whose input
// is out; if possible, out is rounded for it on the way and returned.
using GateFunction = void (*)(float* out, const float* gate, const float* up, int64_t n, int act);
RoundAhead cpu_linear_gate(Tensor out, Tensor x, const Weight&, GateFunction, int act, ThreadPool&, const LinearKernels&, LinearScratch&,
                           const Weight* reader = nullptr, const RowsOfX& = {});

}  // namespace mr
