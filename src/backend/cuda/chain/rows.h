// Products and attentions of a few rows of different sequences, one after the other in one kernel.
#pragma once

#include <cuda.h>

#include <vector>

#include "backend/cuda/chain/steps.h"

namespace mr::cuda {

inline constexpr int kChainRows = 16;  // at most

// A step as the kernel reads it. A product's outputs are split among the blocks in units of eight (gated: eight gates and eight ups),
// or of sixteen if they form fixed parts of a half norm.
struct alignas(16) RowsWork {
  ChainStep step;
  int boxes = 0, chunks = 0, passes = 0;  // boxes of eight weight rows per pass; chunks of 64 inputs per stage; passes over x
  int unit = 1;                           // times eight outputs
  int split = 1, part = 0;                // deterministic products: parts of the inputs; chunks per part
};
struct alignas(128) RowsStep {
  CUtensorMap weight, x;
  RowsWork work;
};

bool can_chain_rows(const Launch&, const ChainStep&);
RowsStep rows_step(const Launch&, const ChainStep&);
// Runs n steps in device memory, all of `rows` rows; the plan applies to every attention.
void chain_rows(const Launch&, const RowsStep* device, int n, int rows, const ChainMemory&, const DecodePlan&);

// spans.cu: the chain's deterministic attention as a separate kernel, for any number of sequences of one row. Its bits are those of
// attend_prefill().
inline bool has_spans(int heads, int kv_heads, int dim) { return dim <= 128 && heads <= kGroup * kv_heads; }
bool can_span(const AttendCall&);  // heads of 64 or 128, and both attend_decode() and attend_prefill() can
void attend_spans(const Launch&, const AttendCall&, const DecodePlan&);

}  // namespace mr::cuda
