#include "quant/kv_format.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/error.h"
#include "core/float8.h"

namespace mr {

std::span<const KvFormat> kv_formats() {
  static constexpr KvFormat kFormats[] = {
      {"f32", DType::f32},
      {"f16", DType::f16},
      {"bf16", DType::bf16},
      {"fp8_e4m3", DType::f8_e4m3, 448},
      {"fp8_e5m2", DType::f8_e5m2, 57344},
      {"int8", DType::i8, 127, true},
      {"int4", DType::i4, 7, true},
  };
  return kFormats;
}

const KvFormat& kv_format(DType element) {
  for (const KvFormat& f : kv_formats())
    if (f.element == element) return f;
  fail("keys and values cannot be stored as {}", name_of(element));
}

const KvFormat& kv_format_named(std::string_view name) {
  std::vector<std::string_view> names;
  for (const KvFormat& f : kv_formats()) {
    if (f.name == (name == "fp8" ? "fp8_e4m3" : name)) return f;
    names.push_back(f.name);
  }
  fail("keys and values cannot be stored as '{}': {} are known", name, fmt::join(names, ", "));
}

float kv_scale(const float* x, int64_t n, float largest) {
  uint32_t top = 0;  // magnitudes compare as their bits do
  for (int64_t i = 0; i < n; i++) top = std::max(top, std::bit_cast<uint32_t>(x[i]) & 0x7fffffff);
  if (top >= 0x7f800000) return std::numeric_limits<float>::quiet_NaN();
  const uint32_t exact = std::bit_cast<uint32_t>(std::bit_cast<float>(top) / largest);
  return std::bit_cast<float>((exact + 0xffff) & 0xffff0000);
}

float kv_code(DType element, const std::byte* row, int64_t stride, int64_t i) {
  const auto byte = [&](int64_t j) { return uint8_t(row[j * stride]); };
  const auto half = [&] { return reinterpret_cast<const uint16_t*>(row)[i * stride / 2]; };
  switch (element) {
    case DType::f32:
      return reinterpret_cast<const float*>(row)[i * stride / 4];
    case DType::f16:
      return f32_from_f16(half());
    case DType::bf16:
      return f32_from_bf16(half());
    case DType::f8_e4m3:
      return f32_from_e4m3(byte(i));
    case DType::f8_e5m2:
      return f32_from_e5m2(byte(i));
    case DType::i8:
      return float(int8_t(byte(i)));
    case DType::i4:
      return float((byte(i / 2) >> i % 2 * 4 & 15) - 8);
    default:
      fail("keys and values cannot be stored as {}", name_of(element));
  }
}

void set_kv_code(DType element, std::byte* row, int64_t stride, int64_t i, float x, float scale) {
  const float code = scale > 0 ? x / scale : 0;  // a scale of 0: all values are; of NaN: whatever the code is
  const auto set = [&](uint8_t byte) { row[i * stride] = std::byte(byte); };
  switch (element) {
    case DType::f32:
      reinterpret_cast<float*>(row)[i * stride / 4] = x;
      break;
    case DType::f16:
      reinterpret_cast<uint16_t*>(row)[i * stride / 2] = f16_from_f32(x);
      break;
    case DType::bf16:
      reinterpret_cast<uint16_t*>(row)[i * stride / 2] = bf16_from_f32(x);
      break;
    case DType::f8_e4m3:
      set(e4m3_from_f32(code));
      break;
    case DType::f8_e5m2:
      set(e5m2_from_f32(code));
      break;
    case DType::i8:
      set(uint8_t(int8_t(std::nearbyint(code))));
      break;
    case DType::i4: {
      std::byte& pair = row[i / 2 * stride];
      const std::byte other = pair & std::byte(i % 2 ? 0x0f : 0xf0);
      pair = other | std::byte((int(std::nearbyint(code)) + 8) << i % 2 * 4);
      break;
    }
    default:
      fail("keys and values cannot be stored as {}", name_of(element));
  }
}

}  // namespace mr
