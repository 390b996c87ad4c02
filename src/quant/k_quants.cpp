// Q2_K to Q6_K: super-blocks of 256 values in groups of 16 or 32, whose scales (and minima) are integers under one f16.
// Values of b bits lie in runs: 32 bytes hold 32 values of every shift, one group of 32 after the other.
#include "quant/block_reader.h"
#include "quant/gguf_blocks.h"

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

static void put_scale_min(std::byte* at, int group, ScaleMin s) {
  if (group < 4) {
    put_bits(at + group, s.scale, 0);
    put_bits(at + 4 + group, s.minimum, 0);
  } else {
    const int k = group - 4;
    put_bits(at + 8 + k, s.scale & 15, 0);
    put_bits(at + 8 + k, s.minimum & 15, 4);
    put_bits(at + k, s.scale >> 4, 6);
    put_bits(at + 4 + k, s.minimum >> 4, 6);
  }
}

static void put_run1(std::byte* at, int i, int bit) { put_bits(at + i % 32, bit, i / 32); }
static void put_run2(std::byte* at, int i, int bits) { put_bits(at + i / 128 * 32 + i % 32, bits, i / 32 % 4 * 2); }
static void put_run4(std::byte* at, int i, int bits) { put_bits(at + i / 64 * 32 + i % 32, bits, i / 32 % 2 * 4); }

void codes_q2_k(const std::byte* block, BlockCodes& c) {  // 16 bytes of scale and minimum, values, f16 scale, f16 minimum
  const BlockReader b(block);
  c.scale = b.u16(80);
  c.minimum = b.u16(82);
  for (int g = 0; g < 16; g++) {
    c.group_scale[g] = int8_t(b.low4(g));
    c.group_minimum[g] = int8_t(b.high4(g));
  }
  for (int i = 0; i < 256; i++) c.code[i] = uint8_t(run2(b, 16, i));
}

void pack_q2_k(const BlockCodes& c, std::byte* block) {
  put_u16(block + 80, uint16_t(c.scale));
  put_u16(block + 82, uint16_t(c.minimum));
  for (int g = 0; g < 16; g++) put_bits(block + g, c.group_scale[g] | c.group_minimum[g] << 4, 0);
  for (int i = 0; i < 256; i++) put_run2(block + 16, i, c.code[i]);
}

void codes_q3_k(const std::byte* block, BlockCodes& c) {  // high bits, low pairs of bits, 12 bytes of scales, f16 scale
  const BlockReader b(block);
  c.scale = b.u16(108);
  for (int g = 0; g < 16; g++) {
    const int at = 96 + g % 8, low = g < 8 ? b.low4(at) : b.high4(at), high = b.u8(104 + g % 4) >> g / 4 * 2 & 3;
    c.group_scale[g] = int8_t((low | high << 4) - 32);
  }
  for (int i = 0; i < 256; i++) c.code[i] = uint8_t(run2(b, 32, i) | run1(b, 0, i) << 2);
}

void pack_q3_k(const BlockCodes& c, std::byte* block) {
  put_u16(block + 108, uint16_t(c.scale));
  for (int g = 0; g < 16; g++) {
    const int scale = c.group_scale[g] + 32;
    put_bits(block + 96 + g % 8, scale & 15, g / 8 * 4);
    put_bits(block + 104 + g % 4, scale >> 4, g / 4 * 2);
  }
  for (int i = 0; i < 256; i++) {
    put_run2(block + 32, i, c.code[i] & 3);
    put_run1(block, i, c.code[i] >> 2);
  }
}

static void six_bit_scales(const BlockReader& b, BlockCodes& c) {  // of q4_k and q5_k: f16 scale, f16 minimum, 12 bytes
  c.scale = b.u16(0);
  c.minimum = b.u16(2);
  for (int g = 0; g < 8; g++) {
    const ScaleMin s = scale_min(b, 4, g);
    c.group_scale[g] = int8_t(s.scale);
    c.group_minimum[g] = int8_t(s.minimum);
  }
}

static void put_six_bit_scales(const BlockCodes& c, std::byte* block) {
  put_u16(block, uint16_t(c.scale));
  put_u16(block + 2, uint16_t(c.minimum));
  for (int g = 0; g < 8; g++) put_scale_min(block + 4, g, {c.group_scale[g], c.group_minimum[g]});
}

void codes_q4_k(const std::byte* block, BlockCodes& c) {  // scales, then values
  const BlockReader b(block);
  six_bit_scales(b, c);
  for (int i = 0; i < 256; i++) c.code[i] = uint8_t(run4(b, 16, i));
}

void pack_q4_k(const BlockCodes& c, std::byte* block) {
  put_six_bit_scales(c, block);
  for (int i = 0; i < 256; i++) put_run4(block + 16, i, c.code[i]);
}

void codes_q5_k(const std::byte* block, BlockCodes& c) {  // as q4_k, with a fifth bit of all values before the nibbles
  const BlockReader b(block);
  six_bit_scales(b, c);
  for (int i = 0; i < 256; i++) c.code[i] = uint8_t(run4(b, 48, i) | run1(b, 16, i) << 4);
}

void pack_q5_k(const BlockCodes& c, std::byte* block) {
  put_six_bit_scales(c, block);
  for (int i = 0; i < 256; i++) {
    put_run4(block + 48, i, c.code[i] & 15);
    put_run1(block + 16, i, c.code[i] >> 4);
  }
}

void codes_q6_k(const std::byte* block, BlockCodes& c) {  // nibbles in runs of 64, high pairs of bits, int8 scales, f16 scale
  const BlockReader b(block);
  c.scale = b.u16(208);
  for (int g = 0; g < 16; g++) c.group_scale[g] = b.i8(192 + g);
  for (int i = 0; i < 256; i++) {
    const int low = b.u8(i / 128 * 64 + i % 64) >> i / 64 % 2 * 4 & 15;
    c.code[i] = uint8_t(low | run2(b, 128, i) << 4);
  }
}

void pack_q6_k(const BlockCodes& c, std::byte* block) {
  put_u16(block + 208, uint16_t(c.scale));
  for (int g = 0; g < 16; g++) block[192 + g] = std::byte(uint8_t(c.group_scale[g]));
  for (int i = 0; i < 256; i++) {
    put_bits(block + i / 128 * 64 + i % 64, c.code[i] & 15, i / 64 % 2 * 4);
    put_run2(block + 128, i, c.code[i] >> 4);
  }
}

}  // namespace mr
