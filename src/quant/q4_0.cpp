// q4_0: 32 values of 4 bits and one f16 scale; real = scale * (value - 8). Byte j holds input j low and input j + 16 high.
#include <cmath>

#include "quant/blocks.h"
#include "quant/table.h"

namespace mr {

static void pack_panel(std::byte* packed, int64_t panel, int64_t in, std::span<const std::byte* const, kPanel> rows) {
  pack_blocks<1, 4>(packed, panel, in, rows, 0);
}

static void decode_rows(const Weight& w, int64_t row, int64_t n, float* out) {
  for (int64_t r = row; r < row + n; r++)
    for (int64_t b = 0; b < w.in / kBlock; b++, out += kBlock) {
      StoredBlock<1, 4> block(w, r, b);
      for (int j = 0; j < 16; j++) {
        out[j] = block.header[0] * float((block.quants[j] & 15) - 8);
        out[j + 16] = block.header[0] * float((block.quants[j] >> 4) - 8);
      }
    }
}

// The value of largest magnitude (the first of equals) becomes exactly -8 steps.
static void encode_row(const float* row, int64_t in, std::byte* stored) {
  for (int64_t k = 0; k < in; k += kBlock, stored += 18) {
    const float* x = row + k;
    float extreme = x[0];
    for (int i = 1; i < kBlock; i++)
      if (std::fabs(x[i]) > std::fabs(extreme)) extreme = x[i];
    float scale = extreme / -8, inverse = scale == 0 ? 0 : 1 / scale;
    put_f16(stored, scale);
    auto step = [&](float v) { return std::fmin(15.0f, std::trunc(v * inverse + 8.5f)); };
    for (int j = 0; j < 16; j++) stored[2 + j] = std::byte(uint8_t(step(x[j])) | uint8_t(step(x[j + 16])) << 4);
  }
}

const FormatOps kQ4_0{{"q4_0", DType::u8, 4, kBlock, false, 18}, block_bytes<1, 4>, pack_panel, decode_rows, encode_row};

}  // namespace mr
