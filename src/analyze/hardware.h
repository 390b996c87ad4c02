// Chips as data: from the datasheet (dense operations, no sparsity), or measured on this machine (local.h).
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"

namespace mr {

struct Chip {
  std::string name, title;
  // Operations a second of a matrix product, a multiply-add counting as 2; 0: the chip has no such unit.
  double bf16 = 0, fp8 = 0, int8 = 0;
  double bandwidth = 0;    // bytes a second from memory
  double memory = 0;       // bytes
  int units = 0;           // multiprocessors, cores
  double unit_memory = 0;  // bytes of fast memory of each unit, for a tile of attention
  double cache = 0;        // bytes shared by all units
  double link = 0;         // bytes a second to other chips, each way
  // Block-quantized weights (q4_1, int4 with scales) times unrounded activations; 0: they are dequantized to bf16 first.
  double quantized = 0;
  double activation_bytes = 2;  // of one activation
  double others = 0;            // share of the processors used by other programs during the measurement

  struct Rate {
    std::string name;  // "avx2 f32"
    double flops;
  };
  std::vector<Rate> rates;  // of every instruction set and type, if measured

  bool busy() const;                                 // measured while other programs ran: the true limits are higher
  double ratio() const { return bf16 / bandwidth; }  // flops a byte at the ridge point
};

std::span<const Chip> chips();
const Chip& chip_named(std::string_view name);  // throws, listing the known ones
std::string chip_names();                       // "h100, h200, ..."

struct Link {
  std::string_view name;
  double bytes_per_s;  // each way
};
std::span<const Link> links();
const Link& link_named(std::string_view name);  // throws, listing the known ones

Json json_of(const Chip&);
Chip chip_from(const Json&);

}  // namespace mr
