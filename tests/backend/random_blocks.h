// Stored rows of codecs that nothing here encodes: random blocks whose values are of ordinary size.
#pragma once

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "quant/codec.h"

namespace mr::test {

inline std::vector<std::byte> random_blocks(const Codec& codec, int64_t n_blocks, unsigned seed, float least = 0.5f, float most = 4) {
  constexpr int kDifferent = 64;
  std::mt19937 rng(seed);
  const size_t bytes = size_t(codec.block_bytes);
  std::vector<std::byte> some(kDifferent * bytes), all(size_t(n_blocks) * bytes);
  std::vector<float> values(static_cast<size_t>(codec.block));
  for (int i = 0; i < kDifferent; i++) {
    float largest;
    do {
      for (size_t b = 0; b < bytes; b++) some[size_t(i) * bytes + b] = std::byte(rng());
      codec.decode(some.data() + size_t(i) * bytes, codec.block, values.data());
      largest = 0;
      for (float v : values) largest = std::isfinite(v) ? std::max(largest, std::abs(v)) : INFINITY;
    } while (!(largest >= least && largest <= most));
  }
  for (int64_t i = 0; i < n_blocks; i++)
    std::copy_n(some.begin() + ptrdiff_t(rng() % kDifferent * bytes), bytes, all.begin() + i * ptrdiff_t(bytes));
  return all;
}

// Rows [out, in]: of these values if the codec can be encoded.
inline std::vector<std::byte> stored_rows(const Codec& codec, const float* values, int64_t out, int64_t in, unsigned seed) {
  if (!codec.encode) return random_blocks(codec, out * in / codec.block, seed);
  std::vector<std::byte> rows(size_t(out * codec.row_bytes(in)));
  for (int64_t r = 0; r < out; r++) codec.encode(values + r * in, in, rows.data() + r * codec.row_bytes(in));
  return rows;
}

}  // namespace mr::test
