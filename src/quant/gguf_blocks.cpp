#include "quant/gguf_blocks.h"

#include "quant/fit.h"
#include "quant/value_tables.h"

namespace mr {

static constexpr Grid kQ5_0{.bits = 5, .group = 32, .offset = 16};
static constexpr Grid kQ5_1{.bits = 5, .group = 32, .minimum = true};
static constexpr Grid kQ2K{.bits = 2, .group = 16, .levels = true, .group_bits = 4, .minimum = true};
static constexpr Grid kQ3K{.bits = 3, .group = 16, .offset = 4, .levels = true};
static constexpr Grid kQ4K{.bits = 4, .group = 32, .levels = true, .minimum = true};
static constexpr Grid kQ5K{.bits = 5, .group = 32, .levels = true, .minimum = true};
static constexpr Grid kQ6K{.bits = 6, .group = 16, .offset = 32, .levels = true};
static constexpr Grid kIq4Nl{.bits = 4, .group = 32, .table = kIq4};
static constexpr Grid kIq4Xs{.bits = 4, .group = 32, .table = kIq4, .levels = true};
static constexpr Grid kMxfp4{.bits = 4, .group = 32, .table = kE2m1Doubled, .scale = Grid::Scale::e8m0_half};

// fit_levels for group scales of `bits`.
template <int bits>
static void fit_groups(const Grid& grid, int weights, const float* x, BlockCodes& c) {
  fit_levels(grid, bits, weights, x, c);
}

template <const Grid& grid, int Weights, int Bytes, BlockToCodes* codes, auto fit, CodesToBlock* pack>
static constexpr Codec of_codes(std::string_view name) {
  return {name,    DType::u8,
          Weights, Bytes,
          grid,    decode_codes<grid, Weights, Bytes, codes>,
          codes,   encode_codes<grid, Weights, Bytes, fit, pack>};
}
static constexpr Codec of_rows(std::string_view name, int weights, int bytes, DecodeRow* decode) {
  return {name, DType::u8, weights, bytes, {}, decode};
}

static constexpr Codec kCodecs[] = {
    of_codes<kQ5_0, 32, 22, codes_q5_0, fit_range, pack_q5_0>("q5_0"),
    of_codes<kQ5_1, 32, 24, codes_q5_1, fit_range, pack_q5_1>("q5_1"),
    of_codes<kQ2K, 256, 84, codes_q2_k, fit_groups<4>, pack_q2_k>("q2_k"),
    of_codes<kQ3K, 256, 110, codes_q3_k, fit_groups<6>, pack_q3_k>("q3_k"),
    of_codes<kQ4K, 256, 144, codes_q4_k, fit_groups<6>, pack_q4_k>("q4_k"),
    of_codes<kQ5K, 256, 176, codes_q5_k, fit_groups<6>, pack_q5_k>("q5_k"),
    of_codes<kQ6K, 256, 210, codes_q6_k, fit_groups<8>, pack_q6_k>("q6_k"),
    of_codes<kIq4Nl, 32, 18, codes_iq4_nl, fit_scale, pack_iq4_nl>("iq4_nl"),
    of_codes<kIq4Xs, 256, 136, codes_iq4_xs, fit_groups<6>, pack_iq4_xs>("iq4_xs"),
    of_codes<kMxfp4, 32, 17, codes_mxfp4, fit_exponent, pack_mxfp4>("mxfp4"),
    of_rows("nvfp4", 64, 36, decode_nvfp4),
    of_rows("iq2_xxs", 256, 66, decode_iq2_xxs),
    of_rows("iq2_xs", 256, 74, decode_iq2_xs),
    of_rows("iq2_s", 256, 82, decode_iq2_s),
    of_rows("iq3_xxs", 256, 98, decode_iq3_xxs),
    of_rows("iq3_s", 256, 110, decode_iq3_s),
    of_rows("iq1_s", 256, 50, decode_iq1_s),
    of_rows("iq1_m", 256, 56, decode_iq1_m),
    of_rows("tq1_0", 256, 54, decode_tq1_0),
    of_rows("tq2_0", 256, 66, decode_tq2_0),
};

std::span<const Codec> gguf_codecs() { return kCodecs; }

}  // namespace mr
