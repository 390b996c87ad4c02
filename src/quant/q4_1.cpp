// q4_1: 32 values of 4 bits, one f16 scale, one f16 minimum; real = scale * value + minimum. Nibbles lie as in q4_0.
#include "quant/block_reader.h"
#include "quant/fit.h"
#include "quant/table.h"

namespace mr {

static constexpr Grid kGrid{.bits = 4, .group = 32, .minimum = true};

static void codes(const std::byte* block, BlockCodes& c) {
  const BlockReader b(block);
  c.scale = b.u16(0);
  c.minimum = b.u16(2);
  b.nibbles(4, c.code);
}

static void pack(const BlockCodes& c, std::byte* block) {
  put_u16(block, uint16_t(c.scale));
  put_u16(block + 2, uint16_t(c.minimum));
  put_nibbles(block + 4, c.code);
}

const Codec kQ4_1{
    "q4_1", DType::u8, 32, 20, kGrid, decode_codes<kGrid, 32, 20, codes>, codes, encode_codes<kGrid, 32, 20, fit_range, pack>};

}  // namespace mr
