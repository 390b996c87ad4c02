// Mixtures of experts on the CPU. Rows are grouped by expert, so that its weights are read once; a row's sums do not depend on
// the rows grouped with it.
#pragma once

#include <span>

#include "backend/cpu/linear.h"
#include "backend/cpu/op_kernels.h"

namespace mr {

// Scratch, reused from call to call.
struct ExpertScratch {
  std::vector<int64_t> begin;  // [experts + 1] where an expert's rows begin
  std::vector<int64_t> order;  // [T * k] output rows, sorted by expert
  Buffer x, y;

  static int64_t needs(int64_t pairs, std::span<const Weight> experts);  // upper bound in bytes for this many (row, expert) pairs
  int64_t bytes() const { return int64_t((begin.capacity() + order.capacity()) * sizeof(int64_t) + x.size() + y.size()); }
};

// Top k of n logits, see Backend::route.
void route_row(int32_t* expert, float* weight, int64_t k, float* logits, int64_t n, bool renormalize, const OpKernels&);

// See Backend::grouped_linear.
void cpu_grouped_linear(Tensor out, Tensor x, std::span<const Weight> experts, Tensor expert, ThreadPool&, const LinearKernels&,
                        LinearScratch&, ExpertScratch&);

}  // namespace mr
