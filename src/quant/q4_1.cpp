// q4_1: 32 values of 4 bits, one f16 scale, one f16 minimum; real = scale * value + minimum. Nibbles lie as in q4_0.
#include <cmath>

#include "quant/block_reader.h"
#include "quant/table.h"

namespace mr {

static constexpr Grid kGrid{.bits = 4, .group = 32, .minimum = true};

static void codes(const std::byte* block, BlockCodes& c) {
  const BlockReader b(block);
  c.scale = b.u16(0);
  c.minimum = b.u16(2);
  b.nibbles(4, c.code);
}

static void encode(const float* row, int64_t in, std::byte* stored) {
  for (int64_t k = 0; k < in; k += 32, stored += 20) {
    const float* x = row + k;
    float low = x[0], high = x[0];
    for (int i = 1; i < 32; i++) {
      low = std::fmin(low, x[i]);
      high = std::fmax(high, x[i]);
    }
    float scale = (high - low) / 15, inverse = scale == 0 ? 0 : 1 / scale;
    put_f16(stored, scale);
    put_f16(stored + 2, low);
    auto step = [&](float v) { return std::fmin(15.0f, std::trunc((v - low) * inverse + 0.5f)); };
    for (int j = 0; j < 16; j++) stored[4 + j] = std::byte(uint8_t(step(x[j])) | uint8_t(step(x[j + 16])) << 4);
  }
}

const Codec kQ4_1{"q4_1", DType::u8, 32, 20, kGrid, decode_codes<kGrid, 32, 20, codes>, codes, encode};

}  // namespace mr
