// TQ1_0 and TQ2_0: 256 values of -1, 0, 1 under one f16 scale at the end of the block.
#include "quant/block_reader.h"
#include "quant/gguf_blocks.h"

namespace mr {

// Digit k of a byte that holds a fraction in base 3, rounded up: times 3^k modulo 256 leaves the digits from k on.
static int trit(uint8_t byte, int k) {
  static constexpr uint8_t power[] = {1, 3, 9, 27, 81};
  return uint8_t(byte * power[k]) * 3 >> 8;
}

void decode_tq1_0(const std::byte* row, int64_t in, float* out) {
  for_each_block<256, 54>(row, in, out, [](const BlockReader& b, float* y) {
    const float scale = b.f16(52);
    auto run = [&](int at, int bytes, int digits) {  // digit k of all bytes, then digit k + 1
      for (int k = 0; k < digits; k++)
        for (int i = 0; i < bytes; i++) *y++ = scale * float(trit(b.u8(at + i), k) - 1);
    };
    run(0, 32, 5);
    run(32, 16, 5);
    run(48, 4, 4);
  });
}

void decode_tq2_0(const std::byte* row, int64_t in, float* out) {
  for_each_block<256, 66>(row, in, out, [](const BlockReader& b, float* y) {
    const float scale = b.f16(64);
    for (int i = 0; i < 256; i++) y[i] = scale * float((b.u8(i / 128 * 32 + i % 32) >> i / 32 % 4 * 2 & 3) - 1);
  });
}

}  // namespace mr
