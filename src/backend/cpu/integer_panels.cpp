// Panels of integers: one packing and one decoding for every grid.
#include <algorithm>
#include <cstring>
#include <iterator>

#include "backend/cpu/panels.h"
#include "quant/grouped.h"
#include "quant/value_tables.h"

namespace mr {

namespace {

struct Plane {
  int bits, shift;  // of a code
};
struct Planes {
  Plane plane[2];
  int n;
};
Planes planes_of(int bits) {
  switch (bits) {
    case 3:
    case 5:
      return {{{bits - 1, 0}, {1, bits - 1}}, 2};
    case 6:
      return {{{4, 0}, {2, 4}}, 2};
    default:
      return {{{bits, 0}}, 1};
  }
}

// Offsets within a block of a panel.
struct Shape {
  const Codec& codec;
  int64_t blocks, groups, scale, head;  // blocks, groups: of 32 inputs in one of the codec's, of a scale in 32
  bool nibbles;                         // a group's scale and minimum share a byte
  int64_t group_bytes, bytes;
  explicit Shape(const Codec& c)
      : codec(c),
        blocks(c.block / kBlock),
        groups(kBlock / c.grid.group),
        scale(size_of(c.grid.scale)),
        head(kPanel * (scale + (c.grid.minimum ? 2 : 0))),
        nibbles(c.grid.minimum && c.grid.group_bits == 4),
        group_bytes(c.grid.levels ? kPanel * groups * (c.grid.minimum && !nibbles ? 2 : 1) : 0),
        bytes(head + blocks * (group_bytes + c.grid.bits * 64)) {}
  int64_t minimum_at(int64_t row) const { return kPanel * scale + 2 * row; }
  int64_t groups_at(int64_t block) const { return head + block * (group_bytes + codec.grid.bits * 64); }
  int64_t codes_at(int64_t block) const { return groups_at(block) + group_bytes; }
};

constexpr uint32_t kBytes = 0x01010101;

// 32 codes of one row to its words of the planes, 64 bytes apart, and back.
void pack_codes(int bits, const uint8_t* code, std::byte* to) {
  uint32_t quad[8];
  std::memcpy(quad, code, sizeof(quad));
  const Planes planes = planes_of(bits);
  for (int i = 0; i < planes.n; i++) {
    const Plane p = planes.plane[i];
    for (int v = 0; v < p.bits; v++, to += 64) {
      uint32_t word = 0;
      for (int g = v, shift = 0; g < 8; g += p.bits, shift += p.bits) word |= (quad[g] >> p.shift & ((1u << p.bits) - 1) * kBytes) << shift;
      std::memcpy(to, &word, 4);
    }
  }
}
void unpack_codes(int bits, const std::byte* from, uint8_t* code) {
  uint32_t quad[8] = {};
  const Planes planes = planes_of(bits);
  for (int i = 0; i < planes.n; i++) {
    const Plane p = planes.plane[i];
    for (int v = 0; v < p.bits; v++, from += 64) {
      uint32_t word;
      std::memcpy(&word, from, 4);
      for (int g = v, shift = 0; g < 8; g += p.bits, shift += p.bits) quad[g] |= (word >> shift & ((1u << p.bits) - 1) * kBytes) << p.shift;
    }
  }
  std::memcpy(code, quad, sizeof(quad));
}

void pack_block(const Shape& s, const BlockCodes& b, int64_t row, std::byte* to) {
  const Grid& grid = s.codec.grid;
  std::memcpy(to + s.scale * row, &b.scale, size_t(s.scale));  // little-endian: the low byte of an e8m0
  if (grid.minimum) std::memcpy(to + s.minimum_at(row), &b.minimum, 2);
  for (int64_t j = 0; j < s.blocks; j++) {
    for (int64_t g = 0; grid.levels && g < s.groups; g++) {
      std::byte* group = to + s.groups_at(j) + g * kPanel + row;
      const int8_t scale = b.group_scale[j * s.groups + g], minimum = b.group_minimum[j * s.groups + g];
      group[0] = std::byte(s.nibbles ? scale | minimum << 4 : scale);
      if (grid.minimum && !s.nibbles) group[s.groups * kPanel] = std::byte(minimum);
    }
    pack_codes(grid.bits, b.code + j * kBlock, to + s.codes_at(j) + 4 * row);
  }
}

void unpack_block(const Shape& s, const std::byte* from, int64_t row, BlockCodes& b) {
  const Grid& grid = s.codec.grid;
  std::memcpy(&b.scale, from + s.scale * row, size_t(s.scale));
  if (grid.minimum) std::memcpy(&b.minimum, from + s.minimum_at(row), 2);
  for (int64_t j = 0; j < s.blocks; j++) {
    for (int64_t g = 0; grid.levels && g < s.groups; g++) {
      const std::byte* group = from + s.groups_at(j) + g * kPanel + row;
      int8_t &scale = b.group_scale[j * s.groups + g], &minimum = b.group_minimum[j * s.groups + g];
      scale = s.nibbles ? int8_t(uint8_t(group[0]) & 15) : int8_t(group[0]);
      if (grid.minimum) minimum = s.nibbles ? int8_t(uint8_t(group[0]) >> 4) : int8_t(group[s.groups * kPanel]);
    }
    unpack_codes(grid.bits, from + s.codes_at(j) + 4 * row, b.code + j * kBlock);
  }
}

int64_t bytes(const Codec& codec, int64_t out, int64_t in) { return (out + kPanel - 1) / kPanel * (in / codec.block) * Shape(codec).bytes; }

void pack_panel(std::byte* packed, int64_t panel, const StoredWeight& w) {
  const Shape shape(*w.codec);
  const int64_t blocks = w.in / w.codec->block, first = panel * kPanel, rows = std::min<int64_t>(kPanel, w.out() - first);
  std::byte* to = packed + panel * blocks * shape.bytes;
  for (int64_t b = 0; b < blocks; b++, to += shape.bytes)
    for (int64_t r = 0; r < kPanel; r++) {
      static constexpr BlockCodes none{};
      BlockCodes codes;
      if (r < rows) w.codes(first + r, b * w.codec->block, codes);
      pack_block(shape, r < rows ? codes : none, r, to);
    }
}

void decode(const Weight& w, int64_t row, int64_t n, float* out) {
  const Shape shape(*w.codec);
  const int64_t blocks = w.in / w.codec->block;
  for (int64_t r = row; r < row + n; r++) {
    const std::byte* from = w.packed.as<std::byte>() + r / kPanel * blocks * shape.bytes;
    for (int64_t b = 0; b < blocks; b++, from += shape.bytes, out += w.codec->block) {
      BlockCodes codes;
      unpack_block(shape, from, r % kPanel, codes);
      values_of(w.codec->grid, int(w.codec->block), codes, out);
    }
  }
}

// Weights in groups: all codes, then all scales.

// Of the values; also where blocks of the file do not share a scale, but those of sorted inputs do.
const Grid& grid_of(const Codec& codec) { return codec.grouped ? codec.grouped->grid : codec.grid; }

GroupHeads heads_of(const Codec& codec, int64_t out, int64_t in) {
  const Grid& grid = grid_of(codec);
  GroupHeads h{.scale = grid.scale, .minima = grid.minimum};
  h.blocks = grid.group / kBlock;
  h.bytes = kPanel * (size_of(grid.scale) + (grid.minimum ? size_of(grid.scale) : 1));
  h.panel_bytes = in / grid.group * h.bytes;
  h.offset = (out + kPanel - 1) / kPanel * (in / kBlock) * grid.bits * 64;
  return h;
}

int64_t group_bytes(const Codec& codec, int64_t out, int64_t in) {
  const GroupHeads h = heads_of(codec, out, in);
  return h.offset + (out + kPanel - 1) / kPanel * h.panel_bytes;
}

void pack_group_panel(std::byte* packed, int64_t panel, const StoredWeight& w) {
  const Grid& grid = grid_of(*w.codec);
  const GroupHeads h = heads_of(*w.codec, w.out(), w.in);
  const int64_t blocks = w.in / kBlock, first = panel * kPanel, rows = std::min<int64_t>(kPanel, w.out() - first);
  const size_t size = size_of(grid.scale);
  std::byte *codes_at = packed + panel * blocks * grid.bits * 64, *heads = packed + h.offset + panel * h.panel_bytes;
  for (int64_t b = 0; b < blocks; b++, codes_at += grid.bits * 64)
    for (int64_t r = 0; r < rows; r++) {
      BlockCodes codes;
      w.codes(first + r, b * kBlock, codes);
      pack_codes(grid.bits, codes.code, codes_at + 4 * r);
      if (b % h.blocks) continue;
      std::byte *scale = heads + b / h.blocks * h.bytes, *second = scale + kPanel * size;
      std::memcpy(scale + size_t(r) * size, &codes.scale, size);
      if (h.minima)
        std::memcpy(second + size_t(r) * size, &codes.minimum, size);
      else
        second[r] = std::byte((grid.zero ? codes.zero : grid.offset) - 128);
    }
}

void decode_groups(const Weight& w, int64_t row, int64_t n, float* out) {
  const Grid& grid = grid_of(*w.codec);
  const GroupHeads h = heads_of(*w.codec, w.out, w.in);
  Grid unpacked = grid;
  unpacked.zero = !h.minima;  // an offset lies there as a zero
  const int32_t* order = w.order.as<int32_t>();
  const size_t size = size_of(grid.scale);
  for (int64_t r = row; r < row + n; r++, out += w.in) {
    const std::byte* codes_at = w.packed.as<std::byte>() + r / kPanel * (w.in / kBlock) * grid.bits * 64 + 4 * (r % kPanel);
    const std::byte* heads = w.packed.as<std::byte>() + h.offset + r / kPanel * h.panel_bytes;
    for (int64_t b = 0; b < w.in / kBlock; b++, codes_at += grid.bits * 64) {
      BlockCodes codes;
      float values[kBlock];
      unpack_codes(grid.bits, codes_at, codes.code);
      const std::byte *scale = heads + b / h.blocks * h.bytes, *second = scale + kPanel * size;
      std::memcpy(&codes.scale, scale + size_t(r % kPanel) * size, size);
      if (h.minima)
        std::memcpy(&codes.minimum, second + size_t(r % kPanel) * size, size);
      else
        codes.zero = uint16_t(int8_t(second[r % kPanel]) + 128);
      values_of(unpacked, kBlock, codes, values);
      for (int64_t i = 0; i < kBlock; i++) out[order ? order[b * kBlock + i] : b * kBlock + i] = values[i];
    }
  }
}

const PanelLayout kInt4Groups{{"int4 in groups", decode_groups}, group_bytes, pack_group_panel};
const PanelLayout kInt8Groups{{"int8 in groups", decode_groups}, group_bytes, pack_group_panel};

const PanelLayout* group_panels(const Codec& codec) {
  const Grid& grid = grid_of(codec);
  const bool fits = codec.grouped && !grid.table && !grid.values && !grid.levels && codec.block == kBlock && grid.group % kBlock == 0 &&
                    (codec.grid.bits || codec.grouped->any_order);
  if (!fits || (grid.scale != Grid::Scale::f16 && grid.scale != Grid::Scale::bf16 && grid.scale != Grid::Scale::f32)) return nullptr;
  return grid.bits == 4 ? &kInt4Groups : grid.bits == 8 ? &kInt8Groups : nullptr;
}

// What the kernels of linear.inl read; a row for each of its types.
struct Known {
  Grid grid;
  PanelLayout layout;
};
constexpr PanelLayout named(std::string_view name) { return {{name, decode}, bytes, pack_panel}; }
const Known kKnown[] = {
    {{.bits = 8, .group = 32, .offset = 128}, named("int8")},
    {{.bits = 4, .group = 32, .offset = 8}, named("int4")},
    {{.bits = 4, .group = 32, .minimum = true}, named("int4 + minimum")},
    {{.bits = 5, .group = 32, .offset = 16}, named("int5")},
    {{.bits = 5, .group = 32, .minimum = true}, named("int5 + minimum")},
    {{.bits = 4, .group = 32, .levels = true, .minimum = true}, named("int4 of two levels")},
    {{.bits = 5, .group = 32, .levels = true, .minimum = true}, named("int5 of two levels")},
    {{.bits = 6, .group = 16, .offset = 32, .levels = true}, named("int6 of two levels")},
    {{.bits = 3, .group = 16, .offset = 4, .levels = true}, named("int3 of two levels")},
    {{.bits = 2, .group = 16, .levels = true, .group_bits = 4, .minimum = true}, named("int2 of two levels")},
    {{.bits = 4, .group = 32, .table = kIq4}, named("iq4")},
    {{.bits = 4, .group = 32, .table = kIq4, .levels = true}, named("iq4 of two levels")},
    {{.bits = 4, .group = 32, .table = kE2m1Doubled, .scale = Grid::Scale::e8m0_half}, named("e2m1")},
};

}  // namespace

const PanelLayout* integer_panels(const Codec& codec) {
  if (codec.grouped && codec.grouped->rounded_inputs) return nullptr;
  const Known* known = std::find_if(std::begin(kKnown), std::end(kKnown), [&](const Known& k) { return k.grid == codec.grid; });
  return known == std::end(kKnown) ? group_panels(codec) : &known->layout;
}

std::optional<GroupHeads> group_heads(const Weight& w) {
  if (w.layout != &kInt4Groups && w.layout != &kInt8Groups) return std::nullopt;
  return heads_of(*w.codec, w.out, w.in);
}

}  // namespace mr
