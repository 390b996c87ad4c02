#include "analyze/numbers.h"

#include <fmt/ranges.h>

#include "core/error.h"
#include "quant/codec.h"

namespace mr {

std::span<const NumberFormat> number_formats() {
  using P = NumberFormat::Product;
  static constexpr NumberFormat kFormats[] = {
      {"f32", 4, 3.4028234663852886e38, 0x1p-126, 0x1p-23, P::bf16, "8 bits of exponent, 23 of fraction"},
      {"f16", 2, 65504, 0x1p-14, 0x1p-10, P::bf16, "5 and 10"},
      {"bf16", 2, 3.3895313892515355e38, 0x1p-126, 0x1p-7, P::bf16, "8 and 7: f32's range"},
      {"fp8", 1, 448, 0x1p-6, 0x1p-3, P::fp8, "e4m3: 4 and 3, no infinity"},
      {"fp8_e5m2", 1, 57344, 0x1p-14, 0x1p-2, P::fp8, "5 and 2: f16's range"},
      {"mxfp4", 4.25 / 8, 6, 1, 0.5, P::quantized, "e2m1, a power of two for every 32"},
      {"int8", 1, 127, 1, 1, P::int8, "a scale for every row"},
      {"int4", 4.125 / 8, 7, 1, 1, P::quantized, "an f16 scale for every 128"},
      {"q8_0", 34.0 / 32, 127, 1, 1, P::quantized, "an f16 scale for every 32"},
      {"q4_0", 18.0 / 32, 8, 1, 1, P::quantized, "an f16 scale for every 32"},
      {"q4_1", 20.0 / 32, 15, 1, 1, P::quantized, "an f16 scale and minimum for every 32"},
  };
  return kFormats;
}

const NumberFormat& number_format(std::string_view name) {
  std::vector<std::string_view> names;
  for (const NumberFormat& f : number_formats()) {
    if (f.name == name) return f;
    names.push_back(f.name);
  }
  fail("there is no number format '{}': {} are known", name, fmt::join(names, ", "));
}

NumberFormat::Product product_of(std::string_view format) {
  for (const NumberFormat& f : number_formats())
    if (f.name == format) return f.product;
  const Codec* codec = find_codec(format);
  return codec && codec->grid.bits ? NumberFormat::Product::quantized : NumberFormat::Product::bf16;
}

double product_rate(const Chip& chip, NumberFormat::Product product) {
  using P = NumberFormat::Product;
  double own = product == P::fp8 ? chip.fp8 : product == P::int8 ? chip.int8 : product == P::quantized ? chip.quantized : 0;
  return own > 0 ? own : chip.bf16;
}

}  // namespace mr
