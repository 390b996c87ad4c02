// Block types of GGUF against what the `gguf` package reads out of the same bytes.
#include "quant/gguf_blocks.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "quant/iq_grids.h"

namespace mr {
namespace {

constexpr int64_t kRows = 4, kIn = 512;

std::vector<char> read(const std::string& name) {
  std::ifstream file(std::string(MR_FIXTURES) + "/quant/blocks/" + name, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class GgufBlocks : public testing::TestWithParam<Codec> {};

TEST_P(GgufBlocks, DecodeWhatGgufDecodes) {
  const Codec& codec = GetParam();
  auto stored = read(std::string(codec.name) + ".bin"), expected = read(std::string(codec.name) + ".f32");
  const int64_t row_bytes = codec.row_bytes(kIn);
  ASSERT_EQ(stored.size(), size_t(kRows * row_bytes));
  ASSERT_EQ(expected.size(), size_t(kRows * kIn * 4));
  for (int64_t row = 0; row < kRows; row++) {
    float got[kIn], want[kIn];
    codec.decode(reinterpret_cast<const std::byte*>(stored.data()) + row * row_bytes, kIn, got);
    std::memcpy(want, expected.data() + row * kIn * 4, sizeof(want));
    for (int64_t i = 0; i < kIn; i++)
      ASSERT_EQ(std::memcmp(&got[i], &want[i], 4), 0) << got[i] << ", not " << want[i] << ", at " << i << " of row " << row;
  }
}

TEST_P(GgufBlocks, DecodeARowOfOneBlock) {
  const Codec& codec = GetParam();
  auto stored = read(std::string(codec.name) + ".bin"), expected = read(std::string(codec.name) + ".f32");
  std::vector<float> got(size_t(codec.block) + 1, -1);
  codec.decode(reinterpret_cast<const std::byte*>(stored.data()) + codec.block_bytes, codec.block, got.data());
  EXPECT_EQ(std::memcmp(got.data(), expected.data() + 4 * codec.block, 4 * size_t(codec.block)), 0);
  EXPECT_EQ(got.back(), -1);
}

INSTANTIATE_TEST_SUITE_P(All, GgufBlocks, testing::ValuesIn(gguf_codecs().begin(), gguf_codecs().end()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(IqGrids, AreTheCodebooksOfGguf) {
  auto expected = read("codebooks.bin");
  size_t at = 0;
  auto expect_grid = [&](const auto& grid, const char* name) {
    ASSERT_LE(at + sizeof(grid), expected.size());
    EXPECT_EQ(std::memcmp(grid.data(), expected.data() + at, sizeof(grid)), 0) << name;
    at += sizeof(grid);
  };
  expect_grid(kIq2XxsGrid, "iq2_xxs");
  expect_grid(kIq2XsGrid, "iq2_xs");
  expect_grid(kIq2SGrid, "iq2_s");
  expect_grid(kIq3XxsGrid, "iq3_xxs");
  expect_grid(kIq3SGrid, "iq3_s");
  expect_grid(kIq1Grid, "iq1");
  EXPECT_EQ(at, expected.size());
}

}  // namespace
}  // namespace mr
