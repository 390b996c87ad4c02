// q4_1: 32 values of 4 bits, one f16 scale, one f16 minimum; real = scale * value + minimum. Nibbles lie as in q4_0.
#include <cmath>

#include "quant/blocks.h"
#include "quant/table.h"

namespace mr {

static void pack_panel(std::byte* packed, int64_t panel, int64_t in, std::span<const std::byte* const, kPanel> rows) {
  pack_blocks<2, 4>(packed, panel, in, rows, 0);
}

static void decode_rows(const Weight& w, int64_t row, int64_t n, float* out) {
  for (int64_t r = row; r < row + n; r++)
    for (int64_t b = 0; b < w.in / kBlock; b++, out += kBlock) {
      StoredBlock<2, 4> block(w, r, b);
      for (int j = 0; j < 16; j++) {
        out[j] = block.header[0] * float(block.quants[j] & 15) + block.header[1];
        out[j + 16] = block.header[0] * float(block.quants[j] >> 4) + block.header[1];
      }
    }
}

static void encode_row(const float* row, int64_t in, std::byte* stored) {
  for (int64_t k = 0; k < in; k += kBlock, stored += 20) {
    const float* x = row + k;
    float low = x[0], high = x[0];
    for (int i = 1; i < kBlock; i++) {
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

const FormatOps kQ4_1{{"q4_1", DType::u8, 4, kBlock, true, 20}, block_bytes<2, 4>, pack_panel, decode_rows, encode_row};

}  // namespace mr
