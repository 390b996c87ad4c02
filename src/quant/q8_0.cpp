// q8_0: 32 signed bytes and one f16 scale; real = scale * value. Codes are value + 128.
#include <cmath>

#include "quant/block_reader.h"
#include "quant/table.h"

namespace mr {

static constexpr Grid kGrid{.bits = 8, .group = 32, .offset = 128};

static void codes(const std::byte* block, BlockCodes& c) {
  const BlockReader b(block);
  c.scale = b.u16(0);
  for (int i = 0; i < 32; i++) c.code[i] = b.u8(2 + i) ^ 0x80;
}

static void encode(const float* row, int64_t in, std::byte* stored) {
  for (int64_t k = 0; k < in; k += 32, stored += 34) {
    float amax = 0;
    for (int i = 0; i < 32; i++) amax = std::fmax(amax, std::fabs(row[k + i]));
    float scale = amax / 127, inverse = scale == 0 ? 0 : 1 / scale;
    put_f16(stored, scale);
    for (int i = 0; i < 32; i++)
      stored[2 + i] = std::byte(int8_t(std::fmax(-127.0f, std::fmin(127.0f, std::round(row[k + i] * inverse)))));  // halves away from zero
  }
}

const Codec kQ8_0{"q8_0", DType::u8, 32, 34, kGrid, decode_codes<kGrid, 32, 34, codes>, codes, encode};

}  // namespace mr
