// Chips as data: what a maker promises (dense operations, no sparsity), or what was measured on this machine (local.h).
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
  double unit_memory = 0;  // bytes of fast memory beside each unit: what a tile of attention lives in
  double cache = 0;        // bytes that all units share
  double link = 0;         // bytes a second to other chips, each way
  // Block-quantized weights (q4_1, int4 with scales) times unrounded activations; 0: they are widened to bf16 first.
  double quantized = 0;
  double activation_bytes = 2;  // of one value that flows between operations
  double others = 0;            // share of the processors that other programs used while it was measured

  struct Rate {
    std::string name;  // "avx2 f32"
    double flops;
  };
  std::vector<Rate> rates;  // of every instruction set and type, where they were measured

  bool busy() const;                                 // others were running while it was measured: its true limits are higher
  double ratio() const { return bf16 / bandwidth; }  // flops a byte, where memory and arithmetic take equally long
};

std::span<const Chip> chips();
const Chip& chip_named(std::string_view name);  // throws, listing what is known
std::string chip_names();                       // "h100, h200, ..."

struct Link {
  std::string_view name;
  double bytes_per_s;  // each way
};
std::span<const Link> links();
const Link& link_named(std::string_view name);  // throws, listing what is known

Json json_of(const Chip&);
Chip chip_from(const Json&);

}  // namespace mr
