// q8_0: 32 signed bytes and one f16 scale; real = scale * value. Panels hold value + 128, so that products are unsigned by signed.
#include <cmath>

#include "quant/blocks.h"
#include "quant/table.h"

namespace mr {

static void pack_panel(std::byte* packed, int64_t panel, int64_t in, std::span<const std::byte* const, kPanel> rows) {
  pack_blocks<1, 8>(packed, panel, in, rows, 0x80808080);
}

static void decode_rows(const Weight& w, int64_t row, int64_t n, float* out) {
  for (int64_t r = row; r < row + n; r++)
    for (int64_t b = 0; b < w.in / kBlock; b++, out += kBlock) {
      StoredBlock<1, 8> block(w, r, b);
      for (int i = 0; i < kBlock; i++) out[i] = float(int(block.quants[i]) - 128) * block.header[0];
    }
}

static void encode_row(const float* row, int64_t in, std::byte* stored) {
  for (int64_t k = 0; k < in; k += kBlock, stored += 34) {
    float amax = 0;
    for (int i = 0; i < kBlock; i++) amax = std::fmax(amax, std::fabs(row[k + i]));
    float scale = amax / 127, inverse = scale == 0 ? 0 : 1 / scale;
    put_f16(stored, scale);
    for (int i = 0; i < kBlock; i++) stored[2 + i] = std::byte(int8_t(std::round(row[k + i] * inverse)));  // halves away from zero
  }
}

const FormatOps kQ8_0{{"q8_0", DType::u8, 8, kBlock, false, 34}, block_bytes<1, 8>, pack_panel, decode_rows, encode_row};

}  // namespace mr
