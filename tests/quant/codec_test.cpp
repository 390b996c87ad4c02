// Codecs against the `gguf` package: tests/fixtures/quant holds stored matrices [24, 96] and what it decodes them to.
#include "quant/codec.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <string>

#include "core/error.h"
#include "core/thread_pool.h"
#include "quant/weight.h"

namespace mr {
namespace {

constexpr int64_t kRows = 24, kIn = 96;

template <class T>
std::vector<T> read(const std::string& name) {
  std::ifstream file(std::string(MR_FIXTURES) + "/quant/" + name, std::ios::binary);
  std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  EXPECT_FALSE(bytes.empty()) << name;
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  return values;
}

class CodecTest : public testing::TestWithParam<const char*> {
 protected:
  const Codec& codec = get_codec(GetParam());
};

TEST_P(CodecTest, DecodesWhatGgufDecodes) {
  auto stored = read<std::byte>(std::string(GetParam()) + ".bin");
  auto expected = read<float>(std::string(GetParam()) + ".f32");
  std::vector<float> got(kRows * kIn);
  for (int64_t r = 0; r < kRows; r++) codec.decode(stored.data() + r * codec.row_bytes(kIn), kIn, got.data() + r * kIn);
  ASSERT_EQ(std::memcmp(got.data(), expected.data(), got.size() * 4), 0);
}

INSTANTIATE_TEST_SUITE_P(All, CodecTest, testing::Values("f16", "bf16", "q8_0", "q4_0", "q4_1"),
                         [](const auto& info) { return std::string(info.param); });

TEST(Codecs, TableIsFoundByName) {
  for (const Codec* codec : codecs()) EXPECT_EQ(find_codec(codec->name), codec);
  EXPECT_EQ(find_codec("q9_9"), nullptr);
  try {
    get_codec("q9_9");
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("'q9_9'"), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("q4_1"), std::string::npos) << e.what();
  }
}

// Rows are taken from several tensors, in any order.
TEST(Codecs, StoredWeightMapsRows) {
  const float a[2][3] = {{1, 2, 3}, {4, 5, 6}}, b[1][3] = {{7, 8, 9}};
  StoredWeight w(get_codec("f32"), b, 1, 3);
  w.add(a, 2, {1, 0});
  WeightStore store;
  ThreadPool pool(2);
  const Weight placed = place_stored(w, store, pool);
  ASSERT_EQ(placed.out, 3);
  float got[3][3];
  placed.decode(0, 3, got[0]);
  const float want[3][3] = {{7, 8, 9}, {4, 5, 6}, {1, 2, 3}};
  EXPECT_EQ(std::memcmp(got, want, sizeof(want)), 0);
}

TEST(Codecs, RowsMustDivideIntoBlocks) {
  std::byte row[200]{};
  EXPECT_THROW(StoredWeight(get_codec("q4_1"), row, 1, 48).check_shape(), Error);
}

}  // namespace
}  // namespace mr
