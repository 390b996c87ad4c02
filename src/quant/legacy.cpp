// Q5_0 and Q5_1: blocks of 32 values of 5 bits. The low four lie in nibbles (values 0..15 in the low ones, 16..31 in the high ones), the
// fifth in a word of 32 bits.
#include "quant/block_reader.h"

namespace mr {

static int five_bits(const BlockReader& b, int high, int low, int i) {
  int nibble = i < 16 ? b.low4(low + i) : b.high4(low + i - 16);
  return nibble | int(b.bit(high, i)) << 4;
}

void decode_q5_0(const std::byte* row, int64_t in, float* out) {  // f16 scale, high bits, nibbles
  for_each_block<32, 22>(row, in, out, [](const BlockReader& b, float* y) {
    const float scale = b.f16(0);
    for (int i = 0; i < 32; i++) y[i] = scale * float(five_bits(b, 2, 6, i) - 16);
  });
}

void decode_q5_1(const std::byte* row, int64_t in, float* out) {  // f16 scale, f16 minimum, high bits, nibbles
  for_each_block<32, 24>(row, in, out, [](const BlockReader& b, float* y) {
    const float scale = b.f16(0), minimum = b.f16(2);
    for (int i = 0; i < 32; i++) y[i] = scale * float(five_bits(b, 4, 8, i)) + minimum;
  });
}

}  // namespace mr
