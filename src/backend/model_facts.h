// What a backend may want to know of the model that it is made for: sizes alone, so that what a device makes of them is decided
// where the device is known.
#pragma once

#include <cstdint>
#include <vector>

#include "core/dtype.h"

namespace mr {

struct ModelFacts {
  struct Attention {
    int heads = 0, kv_heads = 0, head_dim = 0, window = 0;  // window 0: the whole context
  };
  std::vector<Attention> attention;  // the layers of that kind, in order
  int n_layers = 0;
  int64_t parameters = 0;
  bool plain_blocks = false;  // every layer is attention and a dense feed-forward
  DType kv_dtype = DType::bf16;
};

}  // namespace mr
