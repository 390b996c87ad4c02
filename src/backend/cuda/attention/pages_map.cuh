// The pages of an attention layer as a tensor for bulk copies: coordinates (dimension, token of the page, K/V head of K and then of V,
// unit).
#pragma once

#include "backend/cuda/attention/attention.h"
#include "backend/cuda/device/tensor_map.cuh"

namespace mr::cuda {

// piece: tokens per copy, of 64 dimensions. k_dim is v_dim. Units out of bounds read as zero.
inline CUtensorMap pages_map(const Pages& p, int piece) {
  const int64_t row = int64_t(p.k_dim) * 2;
  return tensor_map(p.base, {p.k_dim, p.page_tokens, 2 * p.kv_heads, int64_t(1) << 24}, {row, p.page_tokens * row, p.unit_bytes},
                    {64, piece, 1, 1});
}

}  // namespace mr::cuda
