// Element types and the scalar conversions between them. Conversions to 16 bits round to nearest even.
#pragma once

#include <bit>
#include <cstdint>
#include <string_view>

namespace mr {

enum class DType : uint8_t { f32, f16, bf16, i8, u8, i16, i32, i64, f8_e4m3, f8_e5m2, i4 };

constexpr int64_t bits_of(DType t) {
  switch (t) {
    case DType::i64:
      return 64;
    case DType::f32:
    case DType::i32:
      return 32;
    case DType::f16:
    case DType::bf16:
    case DType::i16:
      return 16;
    case DType::i8:
    case DType::u8:
    case DType::f8_e4m3:
    case DType::f8_e5m2:
      return 8;
    case DType::i4:
      return 4;
  }
  return 0;
}
constexpr int64_t size_of(DType t) { return bits_of(t) / 8; }  // 0: less than a byte

std::string_view name_of(DType t);
DType dtype_from(std::string_view name);  // throws Error for an unknown name

inline float f32_from_bf16(uint16_t h) { return std::bit_cast<float>(uint32_t(h) << 16); }

inline uint16_t bf16_from_f32(float f) {
  uint32_t u = std::bit_cast<uint32_t>(f);
  if ((u & 0x7fffffff) > 0x7f800000) return uint16_t((u >> 16) | 0x40);  // keep NaN a NaN
  return uint16_t((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

inline float f32_from_f16(uint16_t h) {
  uint32_t sign = uint32_t(h & 0x8000) << 16, rest = h & 0x7fff;
  if (rest >= 0x7c00) return std::bit_cast<float>(sign | 0x7f800000 | (rest & 0x3ff) << 13);
  if (rest >= 0x400) return std::bit_cast<float>(sign | ((rest << 13) + (112u << 23)));
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(float(rest) * 0x1p-24f));  // subnormal: exact
}

inline uint16_t f16_from_f32(float f) {
  uint32_t u = std::bit_cast<uint32_t>(f), sign = (u >> 16) & 0x8000, a = u & 0x7fffffff;
  if (a > 0x7f800000) return uint16_t(sign | 0x7e00 | ((a >> 13) & 0x3ff));
  if (a >= 0x477ff000) return uint16_t(sign | 0x7c00);  // rounds to 65536 or more: infinity
  if (a >= 0x38800000) return uint16_t(sign | ((a - (112u << 23) + 0xfff + ((a >> 13) & 1)) >> 13));
  float magic = std::bit_cast<float>(a) + 0.5f;  // 0.5's last place is 2^-24, half precision's smallest step
  return uint16_t(sign | (std::bit_cast<uint32_t>(magic) - 0x3f000000));
}

// FP8 as in OCP's specification (2023): E4M3 has no infinity, 0x7f and 0xff are NaN.
inline float f32_from_e4m3(uint8_t b) {
  const uint32_t sign = uint32_t(b & 0x80) << 24, rest = b & 0x7f;
  if (rest == 0x7f) return std::bit_cast<float>(sign | 0x7fc00000);
  if (rest >= 8) return std::bit_cast<float>(sign | ((rest << 20) + (120u << 23)));
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(float(rest) * 0x1p-9f));  // subnormal: exact
}
inline float f32_from_e5m2(uint8_t b) { return f32_from_f16(uint16_t(b << 8)); }
inline float f32_from_e8m0(uint8_t b) {  // a power of two; 255 is NaN
  return std::bit_cast<float>(b == 255 ? 0x7fc00000u : b == 0 ? 0x00400000u : uint32_t(b) << 23);
}

}  // namespace mr
