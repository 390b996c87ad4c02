// What stored bits mean. A codec is a row in a table of functions; its `decode` is the definition that all else is tested against.
// How a weight lies in memory for a product is a layout (weight.h), and each backend's choice.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/dtype.h"

namespace mr {

// Codes of integers. With the block's scale and the group's, if there are two levels:
//   value = scale * (code - offset),   scale * (code - zero)   or   scale * table[code],   plus the minimum;   scale = block's [* group's]
// A minimum of one level is added; of two levels (block's * group's), subtracted.
struct Grid {
  int bits = 0;       // of a code: 2 to 8; 0: no such grid
  int64_t group = 1;  // weights of a row that share a scale; may be more than a block, up to the whole row
  int offset = 0;
  const int8_t* table = nullptr;
  enum class Scale : uint8_t { f16, bf16, f32, e8m0, e8m0_half, e4m3 } scale = Scale::f16;  // of a block; e8m0_half: 2^(byte - 128)
  bool levels = false;
  int group_bits = 8;  // of a group's scale and minimum; 4 if both fit
  bool minimum = false;
  bool zero = false;              // an integer of each group, instead of the offset
  const float* values = nullptr;  // a table of f32, of 2^bits

  bool operator==(const Grid&) const = default;
};

int64_t size_of(Grid::Scale);
float scale_of(Grid::Scale, uint32_t bits);

// The codes of one block.
struct BlockCodes {
  static constexpr int kWeights = 256, kGroups = 16;  // most
  uint8_t code[kWeights];
  uint32_t scale = 0, minimum = 0;  // bits of Grid::Scale; a minimum is f16 where there are two levels, else of the scale's type
  uint16_t zero = 0;
  int8_t group_scale[kGroups], group_minimum[kGroups];
};

struct Grouped;

// Either of rows: a tensor whose rows are blocks, one after the other. Then its functions read rows and blocks.
// Or of several tensors (grouped.h): codes, which may lie anyhow, and beside them scales and zeros.
// StoredWeight::decode and ::codes read both.
struct Codec {
  std::string_view name;  // of rows: as in Checkpoint's StoredTensor::format
  DType storage;          // f32, f16, bf16, or u8 for blocks
  int64_t block;          // weights whose codes are read together; 1: none
  int64_t block_bytes;    // of rows
  Grid grid;
  // The definition: a stored row of `in` weights, whole blocks, to f32.
  void (*decode)(const std::byte* row, int64_t in, float* out);
  void (*codes)(const std::byte* block, BlockCodes&) = nullptr;               // null: no grid
  void (*encode)(const float* row, int64_t in, std::byte* stored) = nullptr;  // null: is only read
  const Grouped* grouped = nullptr;                                           // of several tensors; the functions are null then
  double grouped_bytes = 0;                                                   // a weight, with its share of scales and zeros

  double bytes_per_weight() const { return grouped ? grouped_bytes : double(block_bytes) / double(block); }
  int64_t row_bytes(int64_t in) const { return in / block * block_bytes; }
};

std::span<const Codec* const> codecs();
const Codec* find_codec(std::string_view name);  // null if unknown
const Codec& get_codec(std::string_view name);   // throws Error naming it and what there is
std::string codec_names();                       // "f32, f16, …"

// A decode function for codecs that are defined by their codes.
template <const Grid& grid, int Weights, int Bytes, auto codes>
void decode_codes(const std::byte* row, int64_t in, float* out);
// And the way back: fit(grid, weights, x, codes) chooses them, pack(codes, block) stores them in a zeroed block.
template <const Grid& grid, int Weights, int Bytes, auto fit, auto pack>
void encode_codes(const float* row, int64_t in, std::byte* stored);
void values_of(const Grid&, int weights, const BlockCodes&, float* out);  // one block

// A weight as it lies in files: stored tensors, stacked, and the order of each one's rows.
struct StoredWeight {
  // What a codec of several tensors reads beside the codes; grouped.h says how they lie.
  struct Beside {
    std::span<const std::byte> codes, scale, zero;        // zero: or the minimum
    std::span<const std::byte> group_of;                  // i32 [in]: the group of each input (g_idx); empty: they lie in order
    std::span<const std::byte> nested_scale, nested_map;  // of scales that are codes themselves
    float outer = 0;                                      // a scale of all scales, or what is added to nested ones

    template <class Self>
    static auto list(Self& b) {
      return std::array{&b.codes, &b.scale, &b.zero, &b.group_of, &b.nested_scale, &b.nested_map};
    }
    auto tensors() { return list(*this); }
    auto tensors() const { return list(*this); }
  };
  struct Part {
    const std::byte* data;       // rows of codec->row_bytes(in); null where there are several tensors
    int64_t n;                   // outputs
    std::vector<int64_t> order;  // the stored row of every output; empty: as they lie
    float factor = 1;            // of every value: a scale of the whole tensor
    int64_t stored_rows = 0;     // of the tensors beside
    Beside beside = {};
  };
  const Codec* codec = nullptr;
  int64_t in = 0;
  std::vector<Part> parts;
  std::vector<int32_t> inputs;  // the order in which `codes` takes them; empty: as they come

  StoredWeight() = default;
  StoredWeight(const Codec& c, int64_t inputs) : codec(&c), in(inputs) {}
  StoredWeight(const Codec& c, const void* tensor, int64_t n_rows, int64_t inputs) : StoredWeight(c, inputs) { add(tensor, n_rows); }

  void add(const void* tensor, int64_t n, std::vector<int64_t> order = {}) {
    parts.push_back({static_cast<const std::byte*>(tensor), n, std::move(order)});
  }
  void add(int64_t n, const Beside& tensors) { parts.push_back({nullptr, n, {}, 1, n, tensors}); }
  int64_t out() const {
    int64_t n = 0;
    for (const Part& part : parts) n += part.n;
    return n;
  }
  struct At {
    const Part& part;
    int64_t row;  // stored
  };
  At at(int64_t output) const {
    size_t i = 0;
    for (; output >= parts[i].n; i++) output -= parts[i].n;
    return {parts[i], parts[i].order.empty() ? output : parts[i].order[size_t(output)]};
  }
  const std::byte* row(int64_t output) const {  // of a codec of rows
    const At place = at(output);
    return place.part.data + place.row * codec->row_bytes(in);
  }
  // The definition of every value: inputs [first, first + n) of an output, whole blocks where the codec is of rows.
  void decode(int64_t output, int64_t first, int64_t n, float* to) const;
  // The codes of inputs [first, first + codec->block): what layouts are packed from. For codecs with a grid.
  void codes(int64_t output, int64_t first, BlockCodes&) const;
  bool scaled() const;       // a part has a factor, which codes leave out
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

template <const Grid& grid, int Weights, int Bytes, auto fit, auto pack>
void encode_codes(const float* row, int64_t in, std::byte* stored) {
  for (int64_t k = 0; k < in; k += Weights, stored += Bytes) {
    BlockCodes block;
    fit(grid, Weights, row + k, block);
    std::memset(stored, 0, Bytes);
    pack(block, stored);
  }
}

}  // namespace mr
