// Fields of a stored block, whose bytes have no alignment: reading and writing.
#pragma once

#include <cstring>

#include "core/dtype.h"
#include "quant/codec.h"

namespace mr {

class BlockReader {
 public:
  explicit BlockReader(const std::byte* block) : block_(block) {}

  uint8_t u8(int at) const { return uint8_t(block_[at]); }
  int8_t i8(int at) const { return int8_t(block_[at]); }
  uint16_t u16(int at) const { return load<uint16_t>(at); }
  uint32_t u32(int at) const { return load<uint32_t>(at); }
  float f16(int at) const { return f32_from_f16(u16(at)); }
  int low4(int at) const { return u8(at) & 15; }
  int high4(int at) const { return u8(at) >> 4; }
  int nibble(int at, int i) const { return u8(at + i / 2) >> i % 2 * 4 & 15; }  // i of a list, the low one of a byte first
  int bits2(int at, int i) const { return u8(at + i / 4) >> i % 4 * 2 & 3; }    // the same for pairs of bits
  bool bit(int at, int i) const { return u8(at + i / 8) >> i % 8 & 1; }
  void nibbles(int at, uint8_t* code) const {  // 32 codes in 16 bytes: the first 16 low, the others high
    for (int i = 0; i < 16; i++) code[i] = uint8_t(low4(at + i));
    for (int i = 0; i < 16; i++) code[i + 16] = uint8_t(high4(at + i));
  }

 private:
  template <class T>
  T load(int at) const {
    T value;
    std::memcpy(&value, block_ + at, sizeof(T));
    return value;
  }

  const std::byte* block_;
};

inline void put_u16(std::byte* at, uint16_t x) { std::memcpy(at, &x, 2); }
inline void put_f16(std::byte* at, float x) { put_u16(at, f16_from_f32(x)); }

// Fields of a block that was zero before, in the places where BlockReader finds them.
inline void put_bits(std::byte* at, int bits, int shift) { *at |= std::byte(uint8_t(bits << shift)); }
inline void put_nibbles(std::byte* at, const uint8_t* code) {  // the low four bits of 32 codes
  for (int i = 0; i < 16; i++) at[i] = std::byte(uint8_t((code[i] & 15) | (code[i + 16] & 15) << 4));
}

// Calls decode(block, out) for each block of a row.
template <int Weights, int Bytes, class Decode>
void for_each_block(const std::byte* row, int64_t in, float* out, Decode decode) {
  for (int64_t b = 0; b < in / Weights; b++) decode(BlockReader(row + b * Bytes), out + b * Weights);
}

}  // namespace mr
