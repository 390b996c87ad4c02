// Model sizes that a backend tunes itself for when it is created. Facts only: the decisions made from them are the
// backend's.
#pragma once

#include <cstdint>
#include <vector>

#include "core/dtype.h"

namespace mr {

struct ModelFacts {
  struct Attention {
    int heads = 0, kv_heads = 0, head_dim = 0, window = 0;  // window 0: the whole context
  };
  std::vector<Attention> attention;  // attention layers, in order
  int n_layers = 0;
  int64_t parameters = 0;
  bool plain_blocks = false;  // every layer is attention and a dense feed-forward
  DType kv_dtype = DType::bf16;
};

}  // namespace mr
