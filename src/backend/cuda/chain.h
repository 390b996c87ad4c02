// Products and attentions of one row, each after those before it, in one kernel.
#pragma once

#include "backend/cuda/kernels.h"

namespace mr::cuda {

struct alignas(16) ChainStep {
  bool attends;
  union {
    Product product;    // as product_one() takes it
    AttendCall attend;  // the one row of the one sequence there is, with its key and value
  };
  explicit ChainStep(const Product& p) : attends(false), product(p) {}
  explicit ChainStep(const AttendCall& c) : attends(true), attend(c) {}
};
struct ChainMemory {
  float* partial = nullptr;     // [n_sm * kGroup * (v_dim + kPartExtra)]
  unsigned* arrived = nullptr;  // [2 + n_sm] zero
};
bool can_chain(const Launch&, const ChainStep&);
void chain(const Launch&, const ChainStep* host, const ChainStep* device, int n, const ChainMemory&);  // the steps, twice

}  // namespace mr::cuda
