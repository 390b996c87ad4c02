// What q8_0, q4_0 and q4_1 share. A file's row is a list of blocks of 32 inputs: `headers` f16 values (scale, minimum), then the
// quants. Four inputs are always four consecutive stored bytes, in a file and in a panel, so packing moves words of 4 bytes.
#pragma once

#include <cstring>

#include "quant/format.h"

namespace mr {

// Packs blocks of `Headers` f16 values and `Words` words of quants; a missing row has zero headers and quants of `flip`.
// flip is xored into every word: 0x80 in each byte makes signed values unsigned.
template <int Headers, int Words>
void pack_blocks(std::byte* packed, int64_t panel, int64_t in, std::span<const std::byte* const, kPanel> rows, uint32_t flip) {
  constexpr int64_t stored = 2 * Headers + 4 * Words, panel_block = stored * kPanel;
  std::byte* out = packed + panel * (in / kBlock) * panel_block;
  for (int64_t b = 0; b < in / kBlock; b++, out += panel_block)
    for (int r = 0; r < kPanel; r++) {
      static constexpr std::byte zeros[stored]{};
      const std::byte* block = rows[r] ? rows[r] + b * stored : zeros;
      for (int h = 0; h < Headers; h++) std::memcpy(out + (h * kPanel + r) * 2, block + 2 * h, 2);
      for (int w = 0; w < Words; w++) {
        uint32_t word;
        std::memcpy(&word, block + 2 * Headers + 4 * w, 4);
        word ^= flip;
        std::memcpy(out + 2 * Headers * kPanel + (w * kPanel + r) * 4, &word, 4);
      }
    }
}

// One row's share of one packed block, as it was stored (quants still flipped).
template <int Headers, int Words>
struct StoredBlock {
  float header[Headers];
  uint8_t quants[4 * Words];

  StoredBlock(const Weight& w, int64_t row, int64_t block) {
    constexpr int64_t panel_block = (2 * Headers + 4 * Words) * kPanel;
    const std::byte* from = w.packed.as<std::byte>() + (row / kPanel * (w.in / kBlock) + block) * panel_block;
    int64_t r = row % kPanel;
    for (int h = 0; h < Headers; h++) {
      uint16_t half;
      std::memcpy(&half, from + (h * kPanel + r) * 2, 2);
      header[h] = f32_from_f16(half);
    }
    for (int w4 = 0; w4 < Words; w4++) std::memcpy(quants + 4 * w4, from + 2 * Headers * kPanel + (w4 * kPanel + r) * 4, 4);
  }
};

template <int Headers, int Words>
int64_t block_bytes(int64_t out, int64_t in) {
  return (out + kPanel - 1) / kPanel * (in / kBlock) * (2 * Headers + 4 * Words) * kPanel;
}

inline void put_f16(std::byte* at, float x) {
  uint16_t half = f16_from_f32(x);
  std::memcpy(at, &half, 2);
}

}  // namespace mr
