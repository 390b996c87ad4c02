// Formats against the `gguf` package: tests/fixtures/quant holds stored matrices [24, 96], what it decodes them to, and what it
// encodes a matrix to.
#include "quant/format.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <string>

#include "core/error.h"
#include "core/thread_pool.h"

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

int64_t row_bytes(const FormatOps& ops) { return kIn / ops.format.group * ops.format.block_bytes; }

std::vector<const std::byte*> row_pointers(const FormatOps& ops, const std::vector<std::byte>& stored) {
  std::vector<const std::byte*> rows;
  for (int64_t r = 0; r < kRows; r++) rows.push_back(stored.data() + r * row_bytes(ops));
  return rows;
}

class FormatTest : public testing::TestWithParam<const char*> {
 protected:
  const FormatOps& ops = format_ops(GetParam());
  WeightStore store;
  ThreadPool pool{2};
};

TEST_P(FormatTest, DecodesWhatGgufDecodes) {
  auto stored = read<std::byte>(std::string(GetParam()) + ".bin");
  auto expected = read<float>(std::string(GetParam()) + ".f32");
  Weight w = pack(ops, row_pointers(ops, stored), kIn, store, pool);
  std::vector<float> got(kRows * kIn);
  ops.decode_rows(w, 0, kRows, got.data());
  ASSERT_EQ(std::memcmp(got.data(), expected.data(), got.size() * 4), 0);
}

TEST_P(FormatTest, DecodesAnyRowsInAnyOrder) {
  auto stored = read<std::byte>(std::string(GetParam()) + ".bin");
  auto expected = read<float>(std::string(GetParam()) + ".f32");
  auto rows = row_pointers(ops, stored);
  for (int64_t n : {1, 15, 16, 17, 23}) {
    std::vector<const std::byte*> chosen;
    for (int64_t i = 0; i < n; i++) chosen.push_back(rows[size_t(i * 7 % kRows)]);
    Weight w = pack(ops, chosen, kIn, store, pool);
    EXPECT_EQ(w.out, n);
    for (int64_t i = 0; i < n; i++) {
      float got[kIn];
      ops.decode_rows(w, i, 1, got);
      EXPECT_EQ(std::memcmp(got, expected.data() + i * 7 % kRows * kIn, sizeof(got)), 0) << "row " << i << " of " << n;
    }
  }
}

TEST_P(FormatTest, EncodesWhatGgufEncodes) {
  auto x = read<float>("encode.f32");
  auto expected = read<std::byte>("encode_" + std::string(GetParam()) + ".bin");
  std::vector<std::byte> got(size_t(kRows * row_bytes(ops)));
  ASSERT_EQ(got.size(), expected.size());
  for (int64_t r = 0; r < kRows; r++) ops.encode_row(x.data() + r * kIn, kIn, got.data() + r * row_bytes(ops));
  for (size_t i = 0; i < got.size(); i++) ASSERT_EQ(int(got[i]), int(expected[i])) << "byte " << i;
}

INSTANTIATE_TEST_SUITE_P(All, FormatTest, testing::Values("f16", "bf16", "q8_0", "q4_0", "q4_1"),
                         [](const auto& info) { return std::string(info.param); });

TEST(Formats, F32IsStoredAsItIs) {
  const FormatOps& ops = format_ops("f32");
  WeightStore store;
  ThreadPool pool(2);
  float x[3][5];
  const std::byte* rows[3];
  for (int r = 0; r < 3; r++) {
    for (int k = 0; k < 5; k++) x[r][k] = float(r * 10 + k) + 0.1f;
    rows[r] = reinterpret_cast<const std::byte*>(x[r]);
  }
  Weight w = pack(ops, rows, 5, store, pool);
  float got[3][5];
  ops.decode_rows(w, 0, 3, got[0]);
  EXPECT_EQ(std::memcmp(got, x, sizeof(x)), 0);
}

TEST(Formats, TableIsFoundByName) {
  for (const FormatOps* ops : formats()) EXPECT_EQ(find_format(ops->format.name), ops);
  EXPECT_EQ(find_format("q3_k"), nullptr);
  try {
    format_ops("q3_k");
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("'q3_k'"), std::string::npos) << e.what();
  }
}

TEST(Formats, RowsMustDivideIntoBlocks) {
  WeightStore store;
  ThreadPool pool(1);
  std::byte row[200]{};
  const std::byte* rows[] = {row};
  EXPECT_THROW(pack(format_ops("q4_1"), rows, 48, store, pool), Error);
}

}  // namespace
}  // namespace mr
