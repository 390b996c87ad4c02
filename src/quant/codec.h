// What stored bits mean. A codec is a row in a table of functions; its `decode` is the definition that all else is tested against.
// How a weight lies in memory for a product is a layout (weight.h), and each backend's choice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/dtype.h"

namespace mr {

// Codes of integers. With the block's scale and the group's, if there are two levels:
//   value = scale * (code - offset)   or   scale * table[code],   plus the minimum;   scale = block's [* group's]
// A minimum of one level is added; of two levels (block's * group's), subtracted.
struct Grid {
  int bits = 0;   // of a code: 2 to 8; 0: no such grid
  int group = 1;  // weights that share a scale
  int offset = 0;
  const int8_t* table = nullptr;
  enum class Scale : uint8_t { f16, e8m0_half } scale = Scale::f16;  // of a block; e8m0_half: 2^(byte - 128)
  bool levels = false;
  int group_bits = 8;  // of a group's scale and minimum; 4 if both fit
  bool minimum = false;
};

// The codes of one block.
struct BlockCodes {
  static constexpr int kWeights = 256, kGroups = 16;  // most
  uint8_t code[kWeights];
  uint16_t scale = 0, minimum = 0;  // bits of Grid::Scale, of an f16
  int8_t group_scale[kGroups], group_minimum[kGroups];
};

struct Codec {
  std::string_view name;  // as in Checkpoint's StoredTensor::format
  DType storage;          // f32, f16, bf16, or u8 for blocks
  int64_t block;          // weights stored together; 1: none
  int64_t block_bytes;
  Grid grid;
  // The definition: a stored row of `in` weights, whole blocks, to f32.
  void (*decode)(const std::byte* row, int64_t in, float* out);
  void (*codes)(const std::byte* block, BlockCodes&) = nullptr;               // null: no grid
  void (*encode)(const float* row, int64_t in, std::byte* stored) = nullptr;  // null: is only read

  double bytes_per_weight() const { return double(block_bytes) / double(block); }
  int64_t row_bytes(int64_t in) const { return in / block * block_bytes; }
};

std::span<const Codec* const> codecs();
const Codec* find_codec(std::string_view name);  // null if unknown
const Codec& get_codec(std::string_view name);   // throws Error naming it and what there is
std::string codec_names();                       // "f32, f16, …"

// A decode function for codecs that are defined by their codes.
template <const Grid& grid, int Weights, int Bytes, auto codes>
void decode_codes(const std::byte* row, int64_t in, float* out);
void values_of(const Grid&, int weights, const BlockCodes&, float* out);  // one block

// A weight as it lies in files: stored tensors, stacked, and the order of each one's rows.
struct StoredWeight {
  struct Part {
    const std::byte* data;       // rows of codec->row_bytes(in)
    int64_t n;                   // outputs
    std::vector<int64_t> order;  // the stored row of every output; empty: as they lie
  };
  const Codec* codec = nullptr;
  int64_t in = 0;
  std::vector<Part> parts;

  StoredWeight() = default;
  StoredWeight(const Codec& c, int64_t inputs) : codec(&c), in(inputs) {}
  StoredWeight(const Codec& c, const void* tensor, int64_t n_rows, int64_t inputs) : StoredWeight(c, inputs) { add(tensor, n_rows); }

  void add(const void* tensor, int64_t n, std::vector<int64_t> order = {}) {
    parts.push_back({static_cast<const std::byte*>(tensor), n, std::move(order)});
  }
  int64_t out() const {
    int64_t n = 0;
    for (const Part& part : parts) n += part.n;
    return n;
  }
  const std::byte* row(int64_t output) const {
    size_t i = 0;
    for (; output >= parts[i].n; i++) output -= parts[i].n;
    return parts[i].data + (parts[i].order.empty() ? output : parts[i].order[size_t(output)]) * codec->row_bytes(in);
  }
  void check_shape() const;  // throws if rows do not divide into blocks
};

template <const Grid& grid, int Weights, int Bytes, auto codes>
void decode_codes(const std::byte* row, int64_t in, float* out) {
  for (int64_t k = 0; k < in; k += Weights, row += Bytes, out += Weights) {
    BlockCodes block;
    codes(row, block);
    values_of(grid, Weights, block, out);
  }
}

}  // namespace mr
