// Products and attentions of a few rows, each of another sequence, one after the other in one kernel.
#pragma once

#include <cuda.h>

#include <vector>

#include "backend/cuda/chain/steps.h"

namespace mr::cuda {

inline constexpr int kChainRows = 16;  // at most

// A step as the kernel reads it. A product's outputs are shared out in units of eight (gated: eight gates and eight values), or of
// sixteen, where fixed parts of a norm are made of them.
struct alignas(16) RowsWork {
  ChainStep step;
  int boxes = 0, chunks = 0, passes = 0;  // boxes of eight weight rows in a pass; chunks of 64 inputs in a stage; passes over x
  int unit = 1;                           // times eight outputs
  int split = 1, part = 0;                // of deterministic products: parts of the inputs; chunks of one
};
struct alignas(128) RowsStep {
  CUtensorMap weight, x;
  RowsWork work;
};

bool can_chain_rows(const Launch&, const ChainStep&);
RowsStep rows_step(const Launch&, const ChainStep&);
// The steps on the device, all of `rows` rows; the plan's items are those of every attention.
void chain_rows(const Launch&, const RowsStep* device, int n, int rows, const ChainMemory&, const DecodePlan&);

}  // namespace mr::cuda
