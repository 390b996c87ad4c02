// q4_0: 32 values of 4 bits and one f16 scale; real = scale * (value - 8). Byte j holds input j low and input j + 16 high.
#include "quant/block_reader.h"
#include "quant/fit.h"
#include "quant/table.h"

namespace mr {

static constexpr Grid kGrid{.bits = 4, .group = 32, .offset = 8};

static void codes(const std::byte* block, BlockCodes& c) {
  const BlockReader b(block);
  c.scale = b.u16(0);
  b.nibbles(2, c.code);
}

static void pack(const BlockCodes& c, std::byte* block) {
  put_u16(block, uint16_t(c.scale));
  put_nibbles(block + 2, c.code);
}

const Codec kQ4_0{
    "q4_0", DType::u8, 32, 18, kGrid, decode_codes<kGrid, 32, 18, codes>, codes, encode_codes<kGrid, 32, 18, fit_range, pack>};

}  // namespace mr
