// Q5_0 and Q5_1: blocks of 32 values of 5 bits. The low four lie in nibbles (values 0..15 in the low ones, 16..31 in the high ones), the
// fifth in a word of 32 bits.
#include "quant/block_reader.h"
#include "quant/gguf_blocks.h"

namespace mr {

static int five_bits(const BlockReader& b, int high, int low, int i) {
  int nibble = i < 16 ? b.low4(low + i) : b.high4(low + i - 16);
  return nibble | int(b.bit(high, i)) << 4;
}

static void put_five_bits(const BlockCodes& c, std::byte* high, std::byte* low) {
  put_nibbles(low, c.code);
  for (int i = 0; i < 32; i++) put_bits(high + i / 8, c.code[i] >> 4, i % 8);
}

void codes_q5_0(const std::byte* block, BlockCodes& c) {  // f16 scale, high bits, nibbles
  const BlockReader b(block);
  c.scale = b.u16(0);
  for (int i = 0; i < 32; i++) c.code[i] = uint8_t(five_bits(b, 2, 6, i));
}

void pack_q5_0(const BlockCodes& c, std::byte* block) {
  put_u16(block, uint16_t(c.scale));
  put_five_bits(c, block + 2, block + 6);
}

void codes_q5_1(const std::byte* block, BlockCodes& c) {  // f16 scale, f16 minimum, high bits, nibbles
  const BlockReader b(block);
  c.scale = b.u16(0);
  c.minimum = b.u16(2);
  for (int i = 0; i < 32; i++) c.code[i] = uint8_t(five_bits(b, 4, 8, i));
}

void pack_q5_1(const BlockCodes& c, std::byte* block) {
  put_u16(block, uint16_t(c.scale));
  put_u16(block + 2, uint16_t(c.minimum));
  put_five_bits(c, block + 4, block + 8);
}

}  // namespace mr
