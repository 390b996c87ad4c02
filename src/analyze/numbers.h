// How numbers are stored, as data: what a weight or a key costs in bytes, what range it has, and which unit multiplies it.
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
  Product product;                 // what a chip multiplies it with
  std::string_view note;
};

std::span<const NumberFormat> number_formats();
const NumberFormat& number_format(std::string_view name);  // throws, listing what is known

NumberFormat::Product product_of(std::string_view format);  // of weights stored so; bf16's where the format is not in the table

// Flops a second of a product whose weights are stored so; bf16's where the chip has no unit of its own.
double product_rate(const Chip&, NumberFormat::Product);

}  // namespace mr
