// q4_0: 32 values of 4 bits and one f16 scale; real = scale * (value - 8). Byte j holds input j low and input j + 16 high.
#include <cmath>

#include "quant/block_reader.h"
#include "quant/table.h"

namespace mr {

static constexpr Grid kGrid{.bits = 4, .group = 32, .offset = 8};

static void codes(const std::byte* block, BlockCodes& c) {
  const BlockReader b(block);
  c.scale = b.u16(0);
  b.nibbles(2, c.code);
}

// The value of largest magnitude (the first of equals) becomes exactly -8 steps.
static void encode(const float* row, int64_t in, std::byte* stored) {
  for (int64_t k = 0; k < in; k += 32, stored += 18) {
    const float* x = row + k;
    float extreme = x[0];
    for (int i = 1; i < 32; i++)
      if (std::fabs(x[i]) > std::fabs(extreme)) extreme = x[i];
    float scale = extreme / -8, inverse = scale == 0 ? 0 : 1 / scale;
    put_f16(stored, scale);
    auto step = [&](float v) { return std::fmin(15.0f, std::trunc(v * inverse + 8.5f)); };
    for (int j = 0; j < 16; j++) stored[2 + j] = std::byte(uint8_t(step(x[j])) | uint8_t(step(x[j + 16])) << 4);
  }
}

const Codec kQ4_0{"q4_0", DType::u8, 32, 18, kGrid, decode_codes<kGrid, 32, 18, codes>, codes, encode};

}  // namespace mr
