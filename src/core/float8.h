// To the two floats of 8 bits (OCP 2023; core/dtype.h has the way back). They round to nearest even and saturate: whatever is too large,
// infinite or no number becomes the largest value of its sign.
// always_inline, so that translation units of an instruction set may use them.
#pragma once

#include <cstdint>

namespace mr {

// Rounds to 8 bits with this many of fraction. `smallest`: the smallest normal value; `largest`: the bits of the largest one.
// Subnormal values are multiples of smallest / 2^fraction: adding 2^(23 - fraction) times smallest rounds to them.
[[gnu::always_inline]] inline uint8_t float8_from_f32(float x, int fraction, float smallest, uint32_t largest) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, x), sign = bits >> 24 & 0x80;
  uint32_t a = bits & 0x7fffffff;
  a = a < largest ? a : largest;
  const int drop = 23 - fraction;
  const uint32_t first = __builtin_bit_cast(uint32_t, smallest);
  const float magic = smallest * float(1 << drop);
  const uint32_t normal = ((a + ((1u << (drop - 1)) - 1) + (a >> drop & 1)) >> drop) - (first >> drop) + (1u << fraction);
  const uint32_t tiny = __builtin_bit_cast(uint32_t, __builtin_bit_cast(float, a) + magic) - __builtin_bit_cast(uint32_t, magic);
  return uint8_t(sign | (a < first ? tiny : normal));
}

[[gnu::always_inline]] inline uint8_t e4m3_from_f32(float x) { return float8_from_f32(x, 3, 0x1p-6f, 0x43e00000); }   // 448
[[gnu::always_inline]] inline uint8_t e5m2_from_f32(float x) { return float8_from_f32(x, 2, 0x1p-14f, 0x47600000); }  // 57344

}  // namespace mr
