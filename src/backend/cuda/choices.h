// Tuning decisions derived from a model's sizes, once, before anything is loaded.
#pragma once

#include <algorithm>

#include "backend/model_facts.h"

namespace mr::cuda {

struct Choices {
  int kv_heads = 8;             // of the attention layers: sets how decodes are split into items
  int group = 4;                // most query heads per K/V head
  bool share_prefixes = false;  // common leading pages of decoding sequences are read once for all of them
  int chain_rows = 16;          // steps of up to this many rows may run as a chain; at most 16
  bool marks = true;            // runs of operations are fused
};

// Fused kernels, chains and shared prefixes need Hopper (bulk copies, wgmma, clusters); plain operations do not.
inline Choices plain_choices(Choices c) {
  c.share_prefixes = c.marks = false;
  c.chain_rows = 0;
  return c;
}

// Prefixes are shared if no attention layer has a window and the kernel supports every head size. A chain for steps of several rows
// pays for its grid barriers only if layers are large and uniform: with 8 B parameters it gains 7 %, with 1 B it loses 4 %.
inline Choices choices_for(const ModelFacts& model) {
  constexpr int64_t large_layer = 128 << 20;  // parameters
  Choices c;
  const bool large = model.n_layers > 0 && model.parameters / model.n_layers >= large_layer;
  if (!large || !model.plain_blocks) c.chain_rows = 1;
  if (model.attention.empty()) return c;
  c.group = 1;
  c.share_prefixes = model.kv_dtype == DType::bf16;
  for (const ModelFacts::Attention& a : model.attention) {
    c.kv_heads = a.kv_heads;
    c.group = std::max(c.group, a.heads / a.kv_heads);
    c.share_prefixes &= a.window == 0 && (a.head_dim == 64 || a.head_dim == 128 || a.head_dim == 256);
  }
  c.share_prefixes &= c.group <= 8;
  return c;
}

}  // namespace mr::cuda
