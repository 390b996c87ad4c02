// Rotary position embeddings (Su et al. 2021) and their context scalings: linear, dynamic NTK, Llama 3, YaRN, LongRoPE.
#pragma once

#include "model/config.h"
#include "model/spec.h"

namespace mr {

// Reads `rope_parameters` (or the older `rope_theta` and `rope_scaling`) for heads of head_dim. layer_type: the entry to use if
// layer types have different ropes.
RopeSpec rope_from(const Config&, int head_dim, const char* layer_type = nullptr);
// The frequencies of a rope, as transformers computes them in f32.
RopeTable make_rope(const RopeSpec&);

}  // namespace mr
