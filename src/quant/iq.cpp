// The IQ types: 256 values under one f16 scale (IQ4_NL: 32). An index names 4 or 8 magnitudes of a codebook at once; signs and the
// scales of groups of 8 to 32 values lie beside the indices.
#include <bit>

#include "quant/block_reader.h"
#include "quant/gguf_blocks.h"
#include "quant/iq_grids.h"

namespace mr {

// Seven signs are stored, the eighth makes their number even.
static uint8_t even_signs(uint32_t seven) { return uint8_t(seven | uint32_t(std::popcount(seven) & 1) << 7); }

// Magnitudes under a scale, each with its bit of `signs`.
template <size_t N>
static void put_signed(const std::array<int8_t, N>& grid, float scale, int signs, float* y) {
  for (size_t i = 0; i < N; i++) y[i] = scale * float(grid[i]) * (signs >> i & 1 ? -1.0f : 1.0f);
}

void codes_iq4_nl(const std::byte* block, BlockCodes& c) {  // f16, values
  const BlockReader b(block);
  c.scale = b.u16(0);
  b.nibbles(2, c.code);
}

void pack_iq4_nl(const BlockCodes& c, std::byte* block) {
  put_u16(block, uint16_t(c.scale));
  put_nibbles(block + 2, c.code);
}

void codes_iq4_xs(const std::byte* block, BlockCodes& c) {  // f16, high pairs of bits of 8 scales, their nibbles, values
  const BlockReader b(block);
  c.scale = b.u16(0);
  for (int g = 0; g < 8; g++) {
    c.group_scale[g] = int8_t((b.nibble(4, g) | b.bits2(2, g) << 4) - 32);
    b.nibbles(8 + 16 * g, c.code + 32 * g);
  }
}

void pack_iq4_xs(const BlockCodes& c, std::byte* block) {
  put_u16(block, uint16_t(c.scale));
  for (int g = 0; g < 8; g++) {
    const int scale = c.group_scale[g] + 32;
    put_bits(block + 4 + g / 2, scale & 15, g % 2 * 4);
    put_bits(block + 2 + g / 4, scale >> 4, g % 4 * 2);
    put_nibbles(block + 8 + 16 * g, c.code + 32 * g);
  }
}

void decode_iq2_xxs(const std::byte* row, int64_t in, float* out) {  // a group of 32: four indices, a word of 4 × 7 signs and a scale
  for_each_block<256, 66>(row, in, out, [](const BlockReader& b, float* y) {
    const float d = b.f16(0);
    for (int group = 0; group < 8; group++) {
      const uint32_t word = b.u32(2 + 8 * group + 4);
      const float scale = d * (0.5f + float(word >> 28)) * 0.25f;
      for (int k = 0; k < 4; k++, y += 8) put_signed(kIq2XxsGrid[b.u8(2 + 8 * group + k)], scale, even_signs(word >> 7 * k & 127), y);
    }
  });
}

void decode_iq2_xs(const std::byte* row, int64_t in, float* out) {  // 9 bits of index and 7 signs; 16 scales of 4 bits
  for_each_block<256, 74>(row, in, out, [](const BlockReader& b, float* y) {
    const float d = b.f16(0);
    for (int k = 0; k < 32; k++, y += 8) {
      const uint16_t code = b.u16(2 + 2 * k);
      const float scale = d * (0.5f + float(b.nibble(66, k / 2))) * 0.25f;
      put_signed(kIq2XsGrid[code & 511], scale, even_signs(code >> 9), y);
    }
  });
}

void decode_iq2_s(const std::byte* row, int64_t in, float* out) {  // indices, 8 signs each, high pairs of bits of indices, 16 scales
  for_each_block<256, 82>(row, in, out, [](const BlockReader& b, float* y) {
    const float d = b.f16(0);
    for (int k = 0; k < 32; k++, y += 8) {
      const float scale = d * (0.5f + float(b.nibble(74, k / 2))) * 0.25f;
      put_signed(kIq2SGrid[b.u8(2 + k) | b.bits2(66, k) << 8], scale, b.u8(34 + k), y);
    }
  });
}

void decode_iq3_xxs(const std::byte* row, int64_t in, float* out) {  // indices of 4 values, then a word a group of 32 as in IQ2_XXS
  for_each_block<256, 98>(row, in, out, [](const BlockReader& b, float* y) {
    const float d = b.f16(0);
    for (int group = 0; group < 8; group++) {
      const uint32_t word = b.u32(66 + 4 * group);
      const float scale = d * (0.5f + float(word >> 28)) * 0.5f;
      for (int k = 0; k < 8; k++, y += 4) {
        const int signs = even_signs(word >> 7 * (k / 2) & 127) >> k % 2 * 4;
        put_signed(kIq3XxsGrid[b.u8(2 + 8 * group + k)], scale, signs, y);
      }
    }
  });
}

void decode_iq3_s(const std::byte* row, int64_t in, float* out) {  // indices of 4 values, their ninth bits, signs, 8 scales of 4 bits
  for_each_block<256, 110>(row, in, out, [](const BlockReader& b, float* y) {
    const float d = b.f16(0);
    for (int k = 0; k < 64; k++, y += 4) {
      const float scale = d * float(1 + 2 * b.nibble(106, k / 8));
      put_signed(kIq3SGrid[b.u8(2 + k) | int(b.bit(66, k)) << 8], scale, b.nibble(74, k), y);
    }
  });
}

static void put_moved(const std::array<int8_t, 8>& grid, float scale, bool down, float* y) {
  for (int i = 0; i < 8; i++) y[i] = scale * (float(grid[i]) + (down ? -0.125f : 0.125f));
}

void decode_iq1_s(const std::byte* row, int64_t in, float* out) {  // indices; a word a group of 32: 4 × 3 bits of index, scale, direction
  for_each_block<256, 50>(row, in, out, [](const BlockReader& b, float* y) {
    const float d = b.f16(0);
    for (int group = 0; group < 8; group++) {
      const uint16_t word = b.u16(34 + 2 * group);
      const float scale = d * float(2 * (word >> 12 & 7) + 1);
      for (int k = 0; k < 4; k++, y += 8) put_moved(kIq1Grid[b.u8(2 + 4 * group + k) | (word >> 3 * k & 7) << 8], scale, word >> 15, y);
    }
  });
}

// Indices; a nibble each of 3 more bits and the direction; four words of 4 × 3 bits of scales, whose top nibbles make the f16 scale.
void decode_iq1_m(const std::byte* row, int64_t in, float* out) {
  for_each_block<256, 56>(row, in, out, [](const BlockReader& b, float* y) {
    uint16_t half = 0;
    for (int w = 0; w < 4; w++) half = uint16_t(half | b.u16(48 + 2 * w) >> 12 << 4 * w);
    const float d = f32_from_f16(half);
    for (int k = 0; k < 32; k++, y += 8) {
      const int high = b.nibble(32, k);
      const float scale = d * float(2 * (b.u16(48 + k / 8 * 2) >> k / 2 % 4 * 3 & 7) + 1);
      put_moved(kIq1Grid[b.u8(k) | (high & 7) << 8], scale, high & 8, y);
    }
  });
}

}  // namespace mr
