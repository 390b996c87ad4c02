// Page lookup and the attention mask.
#pragma once

#include "backend/cuda/attention/attention.h"
#include "backend/cuda/device/device.cuh"

namespace mr::cuda {

__device__ inline int page_number(const Pages& p, int token) { return p.page_shift >= 0 ? token >> p.page_shift : token / p.page_tokens; }

// Whether batch row `row` of sequence `seq` attends to the token at index `place` of that sequence. `first`: the sequence's first row.
__device__ inline bool sees(const Spots& s, int seq, int row, int first, int context, int place, int window) {
  int own = place - context;
  if (window) {
    int position = own < 0 ? place : s.position[first + own];
    if (s.position[row] - position >= window) return false;
  }
  if (own < 0 || s.corner[seq] == Corner::full) return true;
  if (s.corner[seq] == Corner::causal) return own <= row - first;
  return s.ancestors[row] >> own & 1;
}

}  // namespace mr::cuda
