// Names of 16 bytes with one std::hash in libstdc++, which is MurmurHash64A with a known seed: every step of it can be undone, so for
// any first half there is a second half that leads to the same state.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace mr::test {

inline std::vector<std::string> colliding_names(size_t n) {
  constexpr uint64_t m = 0xc6a4a7935bd1e995, seed = 0xc70f6907;
  uint64_t inverse = m;
  for (int i = 0; i < 6; i++) inverse *= 2 - m * inverse;  // Newton: of m modulo 2^64
  auto mix = [](uint64_t k) {
    k *= m;
    return (k ^ k >> 47) * m;
  };
  auto unmix = [&](uint64_t k) {
    k *= inverse;
    return (k ^ k >> 47) * inverse;
  };
  std::vector<std::string> names;
  for (uint64_t i = 0; i < n; i++) {
    const uint64_t after_first = ((seed ^ 16 * m) ^ mix(i)) * m;
    const uint64_t halves[2] = {i, unmix(after_first ^ 12345)};  // the state after both is 12345 * m
    std::string name(16, '\0');
    std::memcpy(name.data(), halves, 16);
    names.push_back(std::move(name));
  }
  return names;
}

}  // namespace mr::test
