// Fields of stored blocks, which lie at any address.
#pragma once

#include <cstring>

#include "quant/codec.h"

namespace mr {

inline uint16_t get_u16(const std::byte* at) {
  uint16_t bits;
  std::memcpy(&bits, at, 2);
  return bits;
}
inline void put_f16(std::byte* at, float x) {
  const uint16_t half = f16_from_f32(x);
  std::memcpy(at, &half, 2);
}
// 32 codes of 4 bits: byte j holds code j low and code j + 16 high.
inline void get_nibbles(const std::byte* from, uint8_t* code) {
  for (int j = 0; j < 16; j++) code[j] = uint8_t(from[j]) & 15;
  for (int j = 0; j < 16; j++) code[j + 16] = uint8_t(from[j]) >> 4;
}

}  // namespace mr
