#include "quant/codec.h"

#include <string>

#include "core/error.h"
#include "quant/gguf_blocks.h"
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

static float scale_of(const Grid& grid, uint16_t bits) {
  if (grid.scale == Grid::Scale::f16) return f32_from_f16(bits);
  return f32_from_bf16(uint16_t(bits < 2 ? 0x20 << bits : (bits - 1) << 7));  // 2^(bits - 128), subnormal at first
}

void values_of(const Grid& grid, int weights, const BlockCodes& b, float* out) {
  const float scale = scale_of(grid, b.scale), minimum = f32_from_f16(b.minimum);
  for (int g = 0; g < weights / grid.group; g++) {
    const float step = grid.levels ? scale * float(b.group_scale[g]) : scale;
    const float least = !grid.minimum ? 0 : grid.levels ? -(minimum * float(b.group_minimum[g])) : minimum;
    for (int i = g * grid.group; i < (g + 1) * grid.group; i++) {
      const float value = step * float(grid.table ? grid.table[b.code[i]] : b.code[i] - grid.offset);
      out[i] = grid.minimum ? value + least : value;
    }
  }
}

}  // namespace mr
