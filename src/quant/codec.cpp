#include "quant/codec.h"

#include <algorithm>
#include <bit>
#include <string>

#include "core/error.h"
#include "quant/gguf_blocks.h"
#include "quant/grouped.h"
#include "quant/table.h"

namespace mr {

std::span<const Codec* const> codecs() {
  static const std::vector<const Codec*> all = [] {
    std::vector<const Codec*> list{&kF32, &kF16, &kBf16, &kQ8_0, &kQ4_0, &kQ4_1};
    for (const Codec& codec : gguf_codecs()) list.push_back(&codec);
    return list;
  }();
  return all;
}

const Codec* find_codec(std::string_view name) {
  for (const Codec* codec : codecs())
    if (codec->name == name) return codec;
  return nullptr;
}

std::string codec_names() {
  std::string names;
  for (const Codec* codec : codecs()) names.append(names.empty() ? "" : ", ").append(codec->name);
  return names;
}

const Codec& get_codec(std::string_view name) {
  if (const Codec* codec = find_codec(name)) return *codec;
  fail("weight format '{}' is not supported: {} are", name, codec_names());
}

void StoredWeight::check_shape() const {
  check(in > 0 && in % codec->block == 0, "a {} weight has rows of {} inputs: a multiple of {} is needed", codec->name, in, codec->block);
}

bool StoredWeight::scaled() const {
  return std::ranges::any_of(parts, [](const Part& part) { return part.factor != 1; });
}

void StoredWeight::decode(int64_t output, int64_t first, int64_t n, float* to) const {
  const At place = at(output);
  if (codec->grouped)
    decode_grouped(*this, place.part, place.row, first, n, to);
  else
    codec->decode(place.part.data + place.row * codec->row_bytes(in) + codec->row_bytes(first), n, to);
  if (place.part.factor != 1)
    for (int64_t i = 0; i < n; i++) to[i] *= place.part.factor;
}

void StoredWeight::codes(int64_t output, int64_t first, BlockCodes& to) const {
  const At place = at(output);
  if (codec->grouped)
    codes_grouped(*this, place.part, place.row, first, to);
  else
    codec->codes(place.part.data + place.row * codec->row_bytes(in) + codec->row_bytes(first), to);
}

int64_t size_of(Grid::Scale type) {
  switch (type) {
    case Grid::Scale::f32:
      return 4;
    case Grid::Scale::f16:
    case Grid::Scale::bf16:
      return 2;
    default:
      return 1;
  }
}

float scale_of(Grid::Scale type, uint32_t bits) {
  switch (type) {
    case Grid::Scale::f16:
      return f32_from_f16(uint16_t(bits));
    case Grid::Scale::bf16:
      return f32_from_bf16(uint16_t(bits));
    case Grid::Scale::f32:
      return std::bit_cast<float>(bits);
    case Grid::Scale::e8m0:
      return f32_from_e8m0(uint8_t(bits));
    case Grid::Scale::e8m0_half:
      return f32_from_bf16(uint16_t(bits < 2 ? 0x20 << bits : (bits - 1) << 7));  // 2^(bits - 128), subnormal at first
    case Grid::Scale::e4m3:
      return f32_from_e4m3(uint8_t(bits));
  }
  return 0;
}

void values_of(const Grid& grid, int weights, const BlockCodes& b, float* out) {
  const float scale = scale_of(grid.scale, b.scale);
  const float minimum = scale_of(grid.levels ? Grid::Scale::f16 : grid.scale, b.minimum);
  const int groups = grid.levels ? weights / int(grid.group) : 1, span = weights / groups;
  const int zero = grid.zero ? b.zero : grid.offset;
  for (int g = 0; g < groups; g++) {
    const float step = grid.levels ? scale * float(b.group_scale[g]) : scale;
    const float least = !grid.minimum ? 0 : grid.levels ? -(minimum * float(b.group_minimum[g])) : minimum;
    for (int i = g * span; i < (g + 1) * span; i++) {
      const float code = grid.values ? grid.values[b.code[i]] : float(grid.table ? grid.table[b.code[i]] : b.code[i] - zero);
      const float value = step * code;
      out[i] = grid.minimum ? value + least : value;
    }
  }
}

}  // namespace mr
