// Encoders: equal to the bit with the `gguf` package where it has one (tests/oracle/quant_encode.py), else at least as close to the values
// as llama.cpp's quantizer (quant_errors.py).
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "core/json.h"
#include "quant/codec.h"

namespace mr {
namespace {

std::ifstream fixture(const std::string& name) { return std::ifstream(std::string(MR_FIXTURES) + "/quant/" + name, std::ios::binary); }

template <class T>
std::vector<T> read(const std::string& name) {
  std::ifstream file = fixture(name);
  std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  EXPECT_FALSE(bytes.empty()) << name;
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  return values;
}

std::vector<std::byte> encoded(const Codec& codec, const float* x, int64_t in) {
  std::vector<std::byte> stored(size_t(codec.row_bytes(in)), std::byte(0xee));  // nothing may be left of it
  codec.encode(x, in, stored.data());
  return stored;
}

std::vector<float> there_and_back(const Codec& codec, const float* x, int64_t in) {
  std::vector<float> back(size_t(in), -1);
  codec.decode(encoded(codec, x, in).data(), in, back.data());
  return back;
}

class Exact : public testing::TestWithParam<const char*> {};

TEST_P(Exact, EncodesWhatGgufEncodes) {
  constexpr int64_t rows = 24, in = 96;
  const Codec& codec = get_codec(GetParam());
  const auto x = read<float>("encode.f32");
  const auto expected = read<std::byte>("encode_" + std::string(GetParam()) + ".bin");
  ASSERT_EQ(expected.size(), size_t(rows * codec.row_bytes(in)));
  for (int64_t r = 0; r < rows; r++) {
    const auto got = encoded(codec, x.data() + r * in, in);
    for (size_t i = 0; i < got.size(); i++)
      ASSERT_EQ(int(got[i]), int(expected[size_t(r) * got.size() + i])) << "byte " << i << " of row " << r;
  }
}

INSTANTIATE_TEST_SUITE_P(All, Exact, testing::Values("f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "mxfp4"),
                         [](const auto& info) { return std::string(info.param); });

class Close : public testing::TestWithParam<const char*> {};

TEST_P(Close, LosesNoMoreThanLlamaCpp) {
  constexpr int64_t in = 1024;
  const Codec& codec = get_codec(GetParam());
  const auto x = read<float>("rows.f32");
  std::ifstream file = fixture("errors.json");
  const Json theirs = Json::parse(file).at(GetParam());
  ASSERT_EQ(x.size(), theirs.size() * in);
  for (size_t r = 0; r < theirs.size(); r++) {
    const float* row = x.data() + r * in;
    const std::vector<float> back = there_and_back(codec, row, in);
    double error = 0, all = 0;
    for (size_t i = 0; i < back.size(); i++) {
      error += (double(back[i]) - row[i]) * (double(back[i]) - row[i]);
      all += double(row[i]) * row[i];
    }
    EXPECT_LE(std::sqrt(error / all), theirs[r].get<double>()) << "row " << r;
    EXPECT_GT(error, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(All, Close, testing::Values("q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_nl", "iq4_xs"),
                         [](const auto& info) { return std::string(info.param); });

// What every encoder owes to any row, whatever it holds.
class Every : public testing::TestWithParam<const Codec*> {};

std::vector<const Codec*> written() {
  std::vector<const Codec*> those;
  for (const Codec* codec : codecs())
    if (codec->encode) those.push_back(codec);
  return those;
}

TEST_P(Every, KeepsARowOfZeros) {
  const std::vector<float> zeros(512);
  for (float x : there_and_back(*GetParam(), zeros.data(), 512)) ASSERT_EQ(x, 0);
}

// Values that a block can hold exactly come back: what was decoded is encoded without loss.
TEST_P(Every, LosesNothingTwice) {
  const auto x = read<float>("rows.f32");
  const auto once = there_and_back(*GetParam(), x.data(), 1024);
  const auto twice = there_and_back(*GetParam(), once.data(), 1024);
  double moved = 0, all = 0;
  for (size_t i = 0; i < once.size(); i++) {
    moved += std::abs(double(once[i]) - twice[i]);
    all += std::abs(double(once[i]));
  }
  EXPECT_LE(moved, 0.01 * all);
}

// A broken weight stays in its block, and is no undefined conversion.
TEST_P(Every, SurvivesWhatIsNoNumber) {
  for (float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                    -std::numeric_limits<float>::infinity(), std::numeric_limits<float>::max(), std::numeric_limits<float>::denorm_min()}) {
    auto row = read<float>("rows.f32");
    row.resize(512);
    const auto good = there_and_back(*GetParam(), row.data(), 512);
    row[3] = bad;
    const auto back = there_and_back(*GetParam(), row.data(), 512);
    for (size_t i = 256; i < 512; i++) ASSERT_EQ(back[i], good[i]);
  }
}

INSTANTIATE_TEST_SUITE_P(All, Every, testing::ValuesIn(written()), [](const auto& info) { return std::string(info.param->name); });

TEST(Encoders, AreThereForTheFormatsThatAreWritten) {
  std::string names;
  for (const Codec* codec : written()) names.append(" ").append(codec->name);
  EXPECT_EQ(names, " f32 f16 bf16 q8_0 q4_0 q4_1 q5_0 q5_1 q2_k q3_k q4_k q5_k q6_k iq4_nl iq4_xs mxfp4");
}

}  // namespace
}  // namespace mr
