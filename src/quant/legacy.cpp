// Q5_0 and Q5_1: blocks of 32 values of 5 bits. The low four lie in nibbles (values 0..15 in the low ones, 16..31 in the high ones), the
// fifth in a word of 32 bits.
#include "quant/block_reader.h"
#include "quant/gguf_blocks.h"

namespace mr {

static int five_bits(const BlockReader& b, int high, int low, int i) {
  int nibble = i < 16 ? b.low4(low + i) : b.high4(low + i - 16);
  return nibble | int(b.bit(high, i)) << 4;
}

void codes_q5_0(const std::byte* block, BlockCodes& c) {  // f16 scale, high bits, nibbles
  const BlockReader b(block);
  c.scale = b.u16(0);
  for (int i = 0; i < 32; i++) c.code[i] = uint8_t(five_bits(b, 2, 6, i));
}

void codes_q5_1(const std::byte* block, BlockCodes& c) {  // f16 scale, f16 minimum, high bits, nibbles
  const BlockReader b(block);
  c.scale = b.u16(0);
  c.minimum = b.u16(2);
  for (int i = 0; i < 32; i++) c.code[i] = uint8_t(five_bits(b, 4, 8, i));
}

}  // namespace mr
