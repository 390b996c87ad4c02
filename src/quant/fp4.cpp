// MXFP4 and NVFP4: values of E2M1 under shared scales (OCP Microscaling Formats, 2023). The table holds the values doubled, the scales
// are halved: both exact.
#include <bit>

#include "quant/block_reader.h"
#include "quant/gguf_blocks.h"
#include "quant/value_tables.h"

namespace mr {

// E4M3 whose sign is not looked at; 0x7f stands for 0.
static float half_of_e4m3(uint8_t x) {
  if (x == 0x7f) return 0;
  const int exponent = x >> 3 & 15;
  const float mantissa = float(x & 7);
  return exponent == 0 ? mantissa * 0x1p-10f : (8 + mantissa) * std::bit_cast<float>(uint32_t(exponent + 116) << 23);
}

void codes_mxfp4(const std::byte* block, BlockCodes& c) {  // E8M0, then nibbles: 0..15 low, 16..31 high
  const BlockReader b(block);
  c.scale = b.u8(0);
  b.nibbles(1, c.code);
}

void pack_mxfp4(const BlockCodes& c, std::byte* block) {
  block[0] = std::byte(uint8_t(c.scale));
  put_nibbles(block + 1, c.code);
}

void decode_nvfp4(const std::byte* row, int64_t in, float* out) {  // four E4M3, then four groups of nibbles: 0..7 low, 8..15 high
  for_each_block<64, 36>(row, in, out, [](const BlockReader& b, float* y) {
    for (int group = 0; group < 4; group++) {
      const float scale = half_of_e4m3(b.u8(group));
      for (int i = 0; i < 8; i++) {
        y[16 * group + i] = scale * float(kE2m1Doubled[b.low4(4 + 8 * group + i)]);
        y[16 * group + i + 8] = scale * float(kE2m1Doubled[b.high4(4 + 8 * group + i)]);
      }
    }
  });
}

}  // namespace mr
