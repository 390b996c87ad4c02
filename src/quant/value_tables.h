// Values that codes choose from.
#pragma once

#include <cstdint>

namespace mr {

inline constexpr int8_t kIq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
inline constexpr int8_t kE2m1Doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

inline constexpr float kE2m1[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
// bitsandbytes' 4 bits: quantiles of the normal distribution (QLoRA, 2023), and floats as it numbers them.
inline constexpr float kNf4[16] = {-1.0f,
                                   -0.6961928009986877f,
                                   -0.5250730514526367f,
                                   -0.39491748809814453f,
                                   -0.28444138169288635f,
                                   -0.18477343022823334f,
                                   -0.09105003625154495f,
                                   0.0f,
                                   0.07958029955625534f,
                                   0.16093020141124725f,
                                   0.24611230194568634f,
                                   0.33791524171829224f,
                                   0.44070982933044434f,
                                   0.5626170039176941f,
                                   0.7229568362236023f,
                                   1.0f};
inline constexpr float kBnbFp4[16] = {0, 0.0625f / 12,  8.0f / 12,  1,  4.0f / 12,  0.5f,  2.0f / 12,  0.25f,
                                      0, -0.0625f / 12, -8.0f / 12, -1, -4.0f / 12, -0.5f, -2.0f / 12, -0.25f};
const float* e4m3_values();  // of all 256 bytes
const float* e5m2_values();

}  // namespace mr
