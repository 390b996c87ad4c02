// Hashes for tables whose keys strangers choose: files and requests. The key is drawn once a process, so that nobody can prepare
// names that share a bucket. Never for anything that outlives the process, and no result may depend on the order in such a table.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <random>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

namespace mr {

struct HashKey {
  uint64_t a, b;
};

inline const HashKey& process_hash_key() {
  static const HashKey key = [] {
    std::random_device device;
    auto draw = [&] { return uint64_t(device()) << 32 | device(); };
    return HashKey{draw(), draw()};
  }();
  return key;
}

// Two folded products, as in wyhash (Wang Yi 2019). One alone is nearly linear: under one key of many it would put the multiples of a
// number side by side.
inline uint64_t keyed_hash(uint64_t x, const HashKey& key) {
  const auto first = static_cast<unsigned __int128>(x ^ key.a) * (std::rotl(x, 32) ^ key.b);
  const auto second = static_cast<unsigned __int128>(uint64_t(first) ^ key.a) * (uint64_t(first >> 64) ^ key.b);
  return uint64_t(second) ^ uint64_t(second >> 64);
}

// SipHash-1-3 (Aumasson and Bernstein 2012).
inline uint64_t keyed_hash(std::string_view text, const HashKey& key) {
  uint64_t v0 = key.a ^ 0x736f6d6570736575, v1 = key.b ^ 0x646f72616e646f6d;
  uint64_t v2 = key.a ^ 0x6c7967656e657261, v3 = key.b ^ 0x7465646279746573;
  auto round = [&] {
    v0 += v1;
    v1 = std::rotl(v1, 13) ^ v0;
    v0 = std::rotl(v0, 32);
    v2 += v3;
    v3 = std::rotl(v3, 16) ^ v2;
    v0 += v3;
    v3 = std::rotl(v3, 21) ^ v0;
    v2 += v1;
    v1 = std::rotl(v1, 17) ^ v2;
    v2 = std::rotl(v2, 32);
  };
  auto absorb = [&](uint64_t word) {
    v3 ^= word;
    round();
    v0 ^= word;
  };
  const size_t whole = text.size() / 8 * 8;
  for (size_t at = 0; at < whole; at += 8) {
    uint64_t word;
    std::memcpy(&word, text.data() + at, 8);
    absorb(word);
  }
  uint64_t last = uint64_t(text.size()) << 56;
  for (size_t at = whole; at < text.size(); at++) last |= uint64_t(static_cast<unsigned char>(text[at])) << 8 * (at - whole);
  absorb(last);
  v2 ^= 0xff;
  for (int i = 0; i < 3; i++) round();
  return v0 ^ v1 ^ v2 ^ v3;
}

// Not noexcept: the library then keeps each entry's hash beside it instead of computing it again on every lookup.
struct KeyedHash {
  size_t operator()(std::string_view text) const { return keyed_hash(text, process_hash_key()); }
  size_t operator()(uint64_t x) const { return keyed_hash(x, process_hash_key()); }
};

template <class Key, class Value>
using KeyedMap = std::unordered_map<Key, Value, KeyedHash>;
template <class Key>
using KeyedSet = std::unordered_set<Key, KeyedHash>;

}  // namespace mr
