// Philox4x32-10 (Salmon et al. 2011): random numbers as a function of a key and a counter, so that a draw
// depends on its purpose and never on earlier draws.
#pragma once

#include <array>
#include <cstdint>

namespace mr {

constexpr std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; round++) {
    uint64_t a = uint64_t(0xD2511F53) * counter[0], b = uint64_t(0xCD9E8D57) * counter[2];
    counter = {uint32_t(b >> 32) ^ counter[1] ^ key[0], uint32_t(b), uint32_t(a >> 32) ^ counter[3] ^ key[1], uint32_t(a)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

// Uniform in [0, 1) with 53 random bits.
constexpr double uniform(uint64_t seed, uint32_t choice, uint32_t position, uint32_t draw = 0) {
  auto r = philox({position, choice, draw, 0}, {uint32_t(seed), uint32_t(seed >> 32)});
  return double((uint64_t(r[0]) << 32 | r[1]) >> 11) * 0x1p-53;
}

}  // namespace mr
