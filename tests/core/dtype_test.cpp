#include "core/dtype.h"

#include <gtest/gtest.h>

#include <cmath>

namespace mr {

// Every half-precision value, from the definition of the format.
static double half_value(uint16_t h) {
  int exponent = (h >> 10) & 31, fraction = h & 1023;
  double magnitude = exponent ? std::ldexp(1024 + fraction, exponent - 25) : std::ldexp(fraction, -24);
  return h & 0x8000 ? -magnitude : magnitude;
}

TEST(DType, EveryHalfConvertsExactlyAndBack) {
  for (uint32_t h = 0; h < 65536; h++) {
    float f = f32_from_f16(uint16_t(h));
    if (((h >> 10) & 31) == 31) {
      EXPECT_EQ(std::isnan(f), (h & 1023) != 0);
      if (!std::isnan(f)) { EXPECT_TRUE(std::isinf(f)); }
    } else {
      EXPECT_EQ(double(f), half_value(uint16_t(h)));
    }
    if (!std::isnan(f)) { EXPECT_EQ(f16_from_f32(f), h); }
  }
}

TEST(DType, HalfRoundsToNearestEven) {
  for (uint32_t h = 0; h < 0x7bff; h++) {  // between each value and the next: below, at and above the middle
    double low = half_value(uint16_t(h)), high = half_value(uint16_t(h + 1)), middle = (low + high) / 2;
    EXPECT_EQ(f16_from_f32(float(middle)), h % 2 ? h + 1 : h);
    EXPECT_EQ(f16_from_f32(std::nextafter(float(middle), -1.0f)), h);
    EXPECT_EQ(f16_from_f32(std::nextafter(float(middle), 1e9f)), h + 1);
  }
  EXPECT_EQ(f16_from_f32(65519.0f), 0x7bff);
  EXPECT_EQ(f16_from_f32(65520.0f), 0x7c00);
  EXPECT_TRUE(std::isnan(f32_from_f16(f16_from_f32(NAN))));
}

TEST(DType, BrainFloatRoundsToNearestEven) {
  EXPECT_EQ(bf16_from_f32(1.0f), 0x3f80);
  EXPECT_EQ(bf16_from_f32(std::bit_cast<float>(0x3f808000u)), 0x3f80);  // the middle goes to the even one
  EXPECT_EQ(bf16_from_f32(std::bit_cast<float>(0x3f818000u)), 0x3f82);
  EXPECT_EQ(bf16_from_f32(std::bit_cast<float>(0x3f808001u)), 0x3f81);
  EXPECT_TRUE(std::isnan(f32_from_bf16(bf16_from_f32(std::bit_cast<float>(0x7f800001u)))));
  EXPECT_TRUE(std::isinf(f32_from_bf16(bf16_from_f32(3.4e38f))));
}

}  // namespace mr
