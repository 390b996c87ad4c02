// Number formats as data: bytes of a weight or key, its range, and which unit multiplies it.
#pragma once

#include <span>
#include <string_view>

#include "analyze/hardware.h"

namespace mr {

struct NumberFormat {
  enum class Product : uint8_t { bf16, fp8, int8, quantized };
  std::string_view name;
  double bytes;                    // one value, with its share of scales
  double largest, smallest, step;  // largest magnitude, smallest normal one (integers: 1), relative spacing (integers: 1)
  Product product;                 // the unit that multiplies it
  std::string_view note;
};

std::span<const NumberFormat> number_formats();
const NumberFormat& number_format(std::string_view name);  // throws, listing the known ones

NumberFormat::Product product_of(std::string_view format);  // of weights in that format; bf16 if it is no grid of integers

// Flops a second of such a product; bf16's where the chip has no such unit.
double product_rate(const Chip&, NumberFormat::Product);

}  // namespace mr
