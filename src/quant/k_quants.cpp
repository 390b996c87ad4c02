// Q2_K to Q6_K: super-blocks of 256 values in groups of 16 or 32, whose scales (and minima) are integers under one f16.
// Values of b bits lie in runs: 32 bytes hold 32 values of every shift, one group of 32 after the other.
#include "quant/block_reader.h"

namespace mr {

// Value i of 256 that are stored as pairs of bits: bytes of 32, four shifts each.
static int run2(const BlockReader& b, int at, int i) { return b.u8(at + i / 128 * 32 + i % 32) >> i / 32 % 4 * 2 & 3; }

// Value i of 256 that are stored as nibbles: bytes of 32, two shifts each.
static int run4(const BlockReader& b, int at, int i) { return b.u8(at + i / 64 * 32 + i % 32) >> i / 32 % 2 * 4 & 15; }

// Bit i of 256: the same 32 bytes, eight shifts.
static int run1(const BlockReader& b, int at, int i) { return b.u8(at + i % 32) >> i / 32 & 1; }

// Eight scales and eight minima of 6 bits in 12 bytes: the first four of each whole, the others as a nibble with two bits above the
// first four.
struct ScaleMin {
  int scale, minimum;
};
static ScaleMin scale_min(const BlockReader& b, int at, int group) {
  if (group < 4) return {b.u8(at + group) & 63, b.u8(at + 4 + group) & 63};
  const int k = group - 4;
  return {b.low4(at + 8 + k) | b.u8(at + k) >> 6 << 4, b.high4(at + 8 + k) | b.u8(at + 4 + k) >> 6 << 4};
}

void decode_q2_k(const std::byte* row, int64_t in, float* out) {  // 16 bytes of scale and minimum, values, f16 scale, f16 minimum
  for_each_block<256, 84>(row, in, out, [](const BlockReader& b, float* y) {
    const float d = b.f16(80), d_min = b.f16(82);
    for (int i = 0; i < 256; i++) {
      const float scale = d * float(b.low4(i / 16)), minimum = d_min * float(b.high4(i / 16));
      y[i] = scale * float(run2(b, 16, i)) - minimum;
    }
  });
}

void decode_q3_k(const std::byte* row, int64_t in, float* out) {  // high bits, low pairs of bits, 12 bytes of scales, f16 scale
  for_each_block<256, 110>(row, in, out, [](const BlockReader& b, float* y) {
    const float d = b.f16(108);
    for (int i = 0; i < 256; i++) {
      const int group = i / 16, at = 96 + group % 8;
      const int low = group < 8 ? b.low4(at) : b.high4(at), high = b.u8(104 + group % 4) >> group / 4 * 2 & 3;
      const float scale = d * float((low | high << 4) - 32);
      y[i] = scale * float(run2(b, 32, i) - (run1(b, 0, i) ? 0 : 4));
    }
  });
}

void decode_q4_k(const std::byte* row, int64_t in, float* out) {  // f16 scale, f16 minimum, 12 bytes of scales and minima, values
  for_each_block<256, 144>(row, in, out, [](const BlockReader& b, float* y) {
    const float d = b.f16(0), d_min = b.f16(2);
    for (int group = 0; group < 8; group++) {
      const ScaleMin s = scale_min(b, 4, group);
      const float scale = d * float(s.scale), minimum = d_min * float(s.minimum);
      for (int i = 32 * group; i < 32 * group + 32; i++) y[i] = scale * float(run4(b, 16, i)) - minimum;
    }
  });
}

void decode_q5_k(const std::byte* row, int64_t in, float* out) {  // as q4_k, with a fifth bit of all values before the nibbles
  for_each_block<256, 176>(row, in, out, [](const BlockReader& b, float* y) {
    const float d = b.f16(0), d_min = b.f16(2);
    for (int group = 0; group < 8; group++) {
      const ScaleMin s = scale_min(b, 4, group);
      const float scale = d * float(s.scale), minimum = d_min * float(s.minimum);
      for (int i = 32 * group; i < 32 * group + 32; i++) y[i] = scale * float(run4(b, 48, i) | run1(b, 16, i) << 4) - minimum;
    }
  });
}

void decode_q6_k(const std::byte* row, int64_t in, float* out) {  // nibbles in runs of 64, high pairs of bits, int8 scales, f16 scale
  for_each_block<256, 210>(row, in, out, [](const BlockReader& b, float* y) {
    const float d = b.f16(208);
    for (int i = 0; i < 256; i++) {
      const float scale = d * float(b.i8(192 + i / 16));
      const int low = b.u8(i / 128 * 64 + i % 64) >> i / 64 % 2 * 4 & 15;
      y[i] = scale * float((low | run2(b, 128, i) << 4) - 32);
    }
  });
}

}  // namespace mr
