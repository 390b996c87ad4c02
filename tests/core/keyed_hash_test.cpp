#include "core/keyed_hash.h"

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "core/colliding_names.h"

namespace mr {

namespace {

constexpr HashKey kCounting{0x0706050403020100, 0x0f0e0d0c0b0a0908};  // the bytes 0 to 15

std::string counting(size_t n) {
  std::string text(n, '\0');
  std::iota(text.begin(), text.end(), '\0');
  return text;
}

}  // namespace

// Computed with the package siphash24 1.9 (siphash13 over c-siphash), under the key and texts of the paper's own vectors.
TEST(KeyedHash, of_a_text_is_siphash_1_3) {
  const std::vector<std::pair<size_t, uint64_t>> known{
      {0, 0xabac0158050fc4dc},  {1, 0xc9f49bf37d57ca93},  {2, 0x82cb9b024dc7d44d},  {3, 0x8bf80ab8e7ddf7fb},  {4, 0xcf75576088d38328},
      {5, 0xdef9d52f49533b67},  {6, 0xc50d2b50c59f22a7},  {7, 0xd3927d989bb11140},  {8, 0x369095118d299a8e},  {9, 0x25a48eb36c063de4},
      {10, 0x79de85ee92ff097f}, {15, 0xd320d86d2a519956}, {63, 0x9d199062b7bbb3a8}, {64, 0xf17997ec4b4a6065}, {255, 0xf76214e3153c4a15},
      {256, 0x75b3e64e167de370}, {300, 0x4016a23bda5a2224}};
  for (auto [size, hash] : known) EXPECT_EQ(keyed_hash(counting(size), kCounting), hash) << size << " bytes";
}

// CPython 3.11 hashes bytes with SipHash-1-3; PYTHONHASHSEED=0 is the key of zeros.
TEST(KeyedHash, agrees_with_cpython) {
  EXPECT_EQ(keyed_hash("siphash", HashKey{0, 0}), 0x8264ceeccb16bcbe);
  EXPECT_EQ(keyed_hash("a token", HashKey{0, 0}), 0x13d333de130ae6dc);
}

// Computed with Python's integers.
TEST(KeyedHash, of_a_number_folds_two_products) {
  EXPECT_EQ(keyed_hash(0x0, kCounting), 0xc458899e3ad3396b);
  EXPECT_EQ(keyed_hash(0x1, kCounting), 0xea2384660403b7d4);
  EXPECT_EQ(keyed_hash(0x123456789abcdef0, kCounting), 0x18ab24686a97af51);
  EXPECT_EQ(keyed_hash(0xffffffffffffffff, kCounting), 0xee1eab3e362b5466);
}

TEST(KeyedHash, spreads_names_that_the_standard_hash_puts_together) {
  const std::vector<std::string> names = test::colliding_names(20'000);
  KeyedMap<std::string_view, size_t> table;
  for (const std::string& name : names) {
    ASSERT_EQ(std::hash<std::string_view>{}(name), std::hash<std::string_view>{}(names[0])) << "the names must collide to show anything";
    ASSERT_TRUE(table.emplace(name, table.size()).second);
  }
  size_t fullest = 0;
  for (size_t i = 0; i < table.bucket_count(); i++) fullest = std::max(fullest, table.bucket_size(i));
  EXPECT_LE(fullest, 16u);  // of 20,000 random ones: 7; more than 16 has a probability below 1e-9
  for (size_t i = 0; i < names.size(); i++) EXPECT_EQ(table.at(names[i]), i);
}

TEST(KeyedHash, has_one_key_a_process) {
  EXPECT_EQ(&process_hash_key(), &process_hash_key());
  EXPECT_NE(process_hash_key().a | process_hash_key().b, 0u);
}

}  // namespace mr
