// The formats of keys and values: their bytes, and their codes against ml_dtypes and PyTorch (tests/oracle/float8.py).
#include "quant/kv_format.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <random>
#include <vector>

#include "core/error.h"
#include "core/float8.h"

namespace mr {
namespace {

struct Float8Fixture {
  std::vector<float> x;
  std::vector<uint8_t> code[2];  // E4M3, E5M2
  std::vector<float> value[2];   // of every code

  Float8Fixture() {
    std::ifstream file(std::string(MR_FIXTURES) + "/quant/float8.bin", std::ios::binary);
    auto read = [&](auto& into, size_t n) {
      into.resize(n);
      file.read(reinterpret_cast<char*>(into.data()), std::streamsize(n * sizeof(into[0])));
    };
    std::vector<uint32_t> n;
    read(n, 1);
    read(x, n[0]);
    for (auto& c : code) read(c, n[0]);
    for (auto& v : value) read(v, 256);
    EXPECT_TRUE(file.good() && n[0] > 1000);
  }
};

TEST(Float8, ConvertsAsTheLibrariesDo) {
  const Float8Fixture f;
  for (size_t i = 0; i < f.x.size(); i++) {
    EXPECT_EQ(e4m3_from_f32(f.x[i]), f.code[0][i]) << f.x[i];
    EXPECT_EQ(e5m2_from_f32(f.x[i]), f.code[1][i]) << f.x[i];
  }
  for (int c = 0; c < 256; c++) {
    const float got[] = {f32_from_e4m3(uint8_t(c)), f32_from_e5m2(uint8_t(c))};
    for (int k = 0; k < 2; k++)
      EXPECT_TRUE(std::isnan(f.value[k][size_t(c)]) ? std::isnan(got[k]) : std::memcmp(&got[k], &f.value[k][size_t(c)], 4) == 0) << c;
  }
  for (float x : {NAN, -NAN}) {  // no code of a finite value is as far from 0
    EXPECT_EQ(std::abs(f32_from_e4m3(e4m3_from_f32(x))), 448);
    EXPECT_EQ(std::abs(f32_from_e5m2(e5m2_from_f32(x))), 57344);
  }
}

TEST(KvFormat, CountsItsBytes) {
  struct {
    const char* name;
    int64_t of_64, of_80, of_7;  // bytes of one head and token
  } const rows[] = {{"f32", 256, 320, 28},   {"f16", 128, 160, 14}, {"bf16", 128, 160, 14}, {"fp8_e4m3", 64, 80, 7},
                    {"fp8_e5m2", 64, 80, 7}, {"int8", 66, 82, 9},   {"int4", 34, 42, 6}};
  EXPECT_EQ(kv_formats().size(), std::size(rows));
  for (auto& r : rows) {
    const KvFormat& f = kv_format_named(r.name);
    EXPECT_EQ(&kv_format(f.element), &f);
    EXPECT_EQ(f.bytes(1, 64, 1), r.of_64) << r.name;
    EXPECT_EQ(f.bytes(1, 80, 1), r.of_80) << r.name;
    EXPECT_EQ(f.bytes(3, 7, 16), 48 * r.of_7) << r.name;
    EXPECT_EQ(f.bytes(8, 0, 16), 0) << "values that alias the keys";
  }
  EXPECT_EQ(kv_format_named("fp8").name, "fp8_e4m3");
  EXPECT_THROW(kv_format_named("int3"), Error);
  EXPECT_THROW(kv_format(DType::i32), Error);
}

// Every value of a row is within half a step of what comes back, and nearly the largest code is used.
TEST(KvFormat, ScalesARowToItsLargestValue) {
  std::mt19937 rng(3);
  std::normal_distribution<float> normal;
  for (float magnitude : {1e-38f, 1e-6f, 1.0f, 300.0f, 1e30f})
    for (int n : {1, 7, 64}) {
      std::vector<float> x(static_cast<size_t>(n));
      float top = 0;
      for (float& v : x) top = std::max(top, std::abs(v = magnitude * normal(rng)));
      for (const KvFormat& f : kv_formats()) {
        if (!f.scaled) continue;
        const float scale = kv_scale(x.data(), n, f.largest);
        EXPECT_EQ(f32_from_bf16(bf16_from_f32(scale)), scale);
        EXPECT_GE(double(scale) * f.largest, double(top) * (1 - 1e-6)) << f.name;
        EXPECT_LE(double(scale) * f.largest, double(top) * (1 + 1.0 / 64) + 0x1p-133 * f.largest) << f.name;  // a step of bf16
        std::vector<std::byte> row(size_t(f.row_bytes(n) * 16), std::byte(0xff));
        for (int i = 0; i < n; i++) set_kv_code(f.element, row.data(), 16, i, x[size_t(i)], scale);
        float most = 0;
        for (int i = 0; i < n; i++) {
          const float code = kv_code(f.element, row.data(), 16, i);
          EXPECT_LE(std::abs(code * double(scale) - x[size_t(i)]), scale * (0.5 + 1e-5)) << f.name;
          most = std::max(most, std::abs(code));
        }
        EXPECT_TRUE(most >= f.largest - 1 || magnitude < 1e-30f) << f.name;  // a scale is up to 1/128 too large, a subnormal one more
      }
    }
  const float zeros[3] = {0, -0.0f, 0}, broken[3] = {1, INFINITY, 2}, unknown[3] = {1, NAN, 2};
  EXPECT_EQ(kv_scale(zeros, 3, 127), 0);
  EXPECT_TRUE(std::isnan(kv_scale(broken, 3, 127)));
  EXPECT_TRUE(std::isnan(kv_scale(unknown, 3, 127)));
}

// Two values share a byte: neither disturbs the other.
TEST(KvFormat, PairsAlongTheHead) {
  std::byte row[2] = {};
  for (int i : {3, 0, 2, 1}) set_kv_code(DType::i4, row, 1, i, float(i - 7), 1);
  EXPECT_EQ(uint8_t(row[0]), 0x21);  // -7 and -6, from -8 up
  EXPECT_EQ(uint8_t(row[1]), 0x43);
}

}  // namespace
}  // namespace mr
