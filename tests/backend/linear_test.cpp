// cpu_linear against a double-precision product over decoded weights, and bit equality: across instruction sets, row counts,
// thread counts. AMX is also run on tiles made of software, so that its kernels are tested where no tile unit is.
#include "backend/cpu/linear.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "backend/random_blocks.h"
#include "backend/soft_tiles.h"
#include "core/error.h"

namespace mr {
namespace {

const std::vector<int64_t> kRowCounts{1, 2, 3, 7, 13, 64, 300};
const std::vector<int64_t> kOuts{1, 15, 16, 17, 100, 333};

std::vector<float> normal(int64_t n, unsigned seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> dist;
  std::vector<float> v(static_cast<size_t>(n));
  for (float& x : v) x = dist(rng);
  return v;
}

// Rows of activations; every fifth has an outlier 20 times the rest, and the second's first block is zero.
std::vector<float> activations(int64_t rows, int64_t in, unsigned seed) {
  auto x = normal(rows * in, seed);
  for (int64_t r = 0; r < rows; r += 5) x[size_t(r * in + r % in)] = 20;
  if (rows > 1)
    for (int64_t k = 0; k < std::min<int64_t>(in, 32); k++) x[size_t(in + k)] = 0;
  return x;
}

struct Packed {
  WeightStore store;
  Weight weight;
  std::vector<float> decoded;  // [out, in]
};

Packed make_weight(const Codec& codec, int64_t out, int64_t in, unsigned seed, ThreadPool& pool) {
  Packed p;
  auto w = normal(out * in, seed);
  const auto stored = test::stored_rows(codec, w.data(), out, in, seed);
  p.weight = pack(StoredWeight(codec, stored.data(), out, in), p.store, pool);
  p.decoded.resize(size_t(out * in));
  p.weight.decode(0, out, p.decoded.data());
  return p;
}

Tensor matrix(std::vector<float>& v, int64_t rows, int64_t cols) { return view(v.data(), DType::f32, {rows, cols}); }

// One way to run a product: an instruction set of this machine.
struct Variant {
  std::string name;
  const LinearKernels* kernels;
  bool tiles = false, soft = false;
};

std::vector<Variant> variants() {
  std::vector<Variant> all;
  bool vnni = false;
  for (Isa isa : available_isas()) {
    all.push_back({std::string(name_of(isa)), &linear_kernels(isa), isa == Isa::amx});
    vnni |= isa == Isa::vnni;
  }
  if (vnni) all.push_back({"amx in software", &soft_tile_kernels(), true, true});
  return all;
}

std::vector<float> run(const Variant& variant, const Weight& w, std::vector<float>& x, ThreadPool& pool, const Epilogue& e = {}) {
  int64_t rows = int64_t(x.size()) / w.in;
  std::vector<float> out(size_t(rows * w.out), -7.0f);
  LinearScratch scratch;
  cpu_linear(matrix(out, rows, w.out), matrix(x, rows, w.in), w, e, pool, *variant.kernels, scratch);
  return out;
}

// The largest error that the arithmetic may make for one output. Each of `steps` roundings is at most 2^-24 of the terms' sum
// of magnitudes. Float weights: a step per input. Quantized weights: two steps a group and four in making a term; with a minimum the two
// terms of a block are at most 2 and 1 times max|w| sum|x|; and every activation is off by half of max|x| / 32639, hardly more.
// Split into two bf16: off by 2^-17 of itself, and two steps an input.
double bound(const float* x, const float* w, int64_t in, int groups, bool split) {
  const bool quantized = groups > 0;
  double magnitude = 0, rounding = 0;
  for (int64_t b = 0; b < in; b += kBlock) {
    double products = 0, largest_x = 0, largest_w = 0, sum_x = 0, sum_w = 0;
    for (int64_t k = b; k < std::min(b + kBlock, in); k++) {
      double ax = std::fabs(x[k]), aw = std::fabs(w[k]);
      products += ax * aw;
      sum_x += ax;
      sum_w += aw;
      largest_x = std::max(largest_x, ax);
      largest_w = std::max(largest_w, aw);
    }
    magnitude += quantized ? 3 * largest_w * sum_x : products;
    if (quantized) rounding += 1.01 * 0.5 * largest_x / 32639 * sum_w;
    if (split) rounding += 0x1p-17 * products;
  }
  int64_t steps = quantized ? in / kBlock * groups * 2 + 4 : split ? 2 * in : in;
  return double(steps) * 0x1p-24 * magnitude + rounding + 1e-30;
}

// Rounding to a step is an error of variance step^2 / 12; of one output, times the weights squared.
double rounding_variance(const float* x, const float* w, int64_t in) {
  double variance = 0;
  for (int64_t b = 0; b < in; b += kBlock) {
    double largest = 0, squares = 0;
    for (int64_t k = b; k < b + kBlock; k++) {
      largest = std::max<double>(largest, std::fabs(x[k]));
      squares += double(w[k]) * w[k];
    }
    variance += largest / 32639 * (largest / 32639) / 12 * squares;
  }
  return variance;
}

class LinearTest : public testing::TestWithParam<const Codec*> {
 protected:
  const Codec& codec = *GetParam();
  bool floats = codec.block == 1, quantized = !floats && panel_layout(codec);  // else activations stay f32
  int groups = quantized ? kBlock / codec.grid.group : 0;                      // of 32 inputs
  ThreadPool pool{2};
  std::vector<int64_t> ins() const {
    if (codec.block > kBlock) return {codec.block, 2 * codec.block, 768, 1280, 1536};
    std::vector<int64_t> v{32, 64, 96, 576, 1536};
    if (floats) v.insert(v.end(), {1, 5, 33, 100, 1061});
    return v;
  }
  int64_t whole(int64_t in) const { return (in + codec.block - 1) / codec.block * codec.block; }
  void expect_product(const std::vector<float>& y, const std::vector<float>& x, const Packed& p, int64_t rows, bool split) {
    const int64_t in = p.weight.in, out = p.weight.out;
    for (int64_t r = 0; r<rows; r += rows> 64 ? 13 : 1)
      for (int64_t n = 0; n < out; n++) {
        const float *xr = x.data() + r * in, *wn = p.decoded.data() + n * in;
        double exact = 0;
        for (int64_t k = 0; k < in; k++) exact += double(xr[k]) * wn[k];
        ASSERT_NEAR(y[size_t(r * out + n)], exact, bound(xr, wn, in, groups, split))
            << rows << " rows, [" << out << ", " << in << "], row " << r << " output " << n;
      }
  }
  // Shapes of more than `least` and at most `most` multiply-adds.
  void expect_products(int64_t least, int64_t most) {
    for (int64_t in : ins())
      for (int64_t out : kOuts) {
        Packed p = make_weight(codec, out, in, unsigned(in + out), pool);
        for (int64_t rows : kRowCounts) {
          if (rows * out * in <= least || rows * out * in > most) continue;
          auto x = activations(rows, in, unsigned(rows));
          std::vector<float> first[2];  // of vectors, of tiles with an arithmetic of their own
          for (const Variant& variant : variants()) {
            if (variant.soft && rows * out * in > 4'000'000) continue;
            const bool split = variant.tiles && codec.name == "bf16";
            auto y = run(variant, p.weight, x, pool);
            if (first[split].empty()) {
              first[split] = y;
              expect_product(y, x, p, rows, split);
            }
            ASSERT_EQ(std::memcmp(y.data(), first[split].data(), y.size() * 4), 0)
                << variant.name << " " << rows << " rows, [" << out << ", " << in << "]";
          }
        }
      }
  }
  void SetUp() override {
    for (Isa isa : {Isa::avx2, Isa::avx512, Isa::vnni, Isa::amx}) {
      auto have = available_isas();
      if (std::find(have.begin(), have.end(), isa) == have.end())
        std::printf("not tested, this machine lacks it: %s\n", name_of(isa).data());
    }
  }
};

TEST_P(LinearTest, IsTheProductOfSmallMatrices) { expect_products(0, 20'000); }
TEST_P(LinearTest, IsTheProductOnEveryInstructionSet) { expect_products(20'000, 40'000'000); }

// The bound above is for the worst case; here errors are as large as rounding to 16 bits makes them, and no larger.
TEST_P(LinearTest, ErrorIsThatOfSixteenBitActivations) {
  if (!quantized) return;  // activations stay f32
  const int64_t rows = 40, out = 100, in = whole(576);
  Packed p = make_weight(codec, out, in, 21, pool);
  auto x = activations(rows, in, 22);
  auto y = run(variants().back(), p.weight, x, pool);
  double squares = 0, expected = 0;
  for (int64_t r = 0; r < rows; r++)
    for (int64_t n = 0; n < out; n++) {
      const float *xr = x.data() + r * in, *wn = p.decoded.data() + n * in;
      double exact = 0;
      for (int64_t k = 0; k < in; k++) exact += double(xr[k]) * wn[k];
      squares += std::pow(y[size_t(r * out + n)] - exact, 2);
      expected += rounding_variance(xr, wn, in);
    }
  EXPECT_NEAR(std::sqrt(squares / expected), 1, 0.1);
}

TEST_P(LinearTest, RowIsTheSameAloneAndAmongOthers) {
  for (int64_t in : {whole(96), whole(576)}) {
    Packed p = make_weight(codec, 333, in, 3, pool);
    auto x = activations(300, in, 4);
    for (const Variant& variant : variants()) {
      auto all = run(variant, p.weight, x, pool);
      for (int64_t n : {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 24, 25}) {
        for (int64_t at : {int64_t(0), int64_t(131), 300 - n}) {
          std::vector<float> some(x.begin() + at * in, x.begin() + (at + n) * in);
          auto y = run(variant, p.weight, some, pool);
          ASSERT_EQ(std::memcmp(y.data(), all.data() + at * 333, y.size() * 4), 0) << variant.name << " rows " << at << " + " << n;
        }
      }
    }
  }
}

TEST_P(LinearTest, ThreadsDoNotMatter) {
  const int64_t in = whole(576);
  Packed p = make_weight(codec, 1000, in, 5, pool);
  for (int64_t rows : {1, 7, 130}) {
    auto x = activations(rows, in, 6);
    for (const Variant& variant : variants()) {
      if (variant.soft && rows > 24) continue;  // slow
      ThreadPool one(1);
      auto expected = run(variant, p.weight, x, one);
      for (int threads = 2; threads <= 8; threads++) {
        ThreadPool many(threads);
        auto y = run(variant, p.weight, x, many);
        ASSERT_EQ(std::memcmp(y.data(), expected.data(), y.size() * 4), 0) << variant.name << " " << threads << " threads";
      }
    }
  }
}

// The epilogue's definition, step by step in f32, over the plain product; strided tensors; a residual that is the output itself, or lies
// elsewhere with a stride of its own.
TEST_P(LinearTest, EpilogueAndStrides) {
  const int64_t in = whole(96), out = 37, rows = 11, wide = 50, wider = 61;
  Packed p = make_weight(codec, out, in, 8, pool);
  auto x = activations(rows, in, 9), bias = normal(out, 10), residual = normal(rows * wide, 11), elsewhere = normal(rows * wider, 12);
  std::vector<float> wide_x(size_t(rows * 2 * in), NAN);
  for (int64_t r = 0; r < rows; r++) std::copy_n(x.begin() + r * in, in, wide_x.begin() + r * 2 * in);
  for (const Variant& variant : variants()) {
    auto plain = run(variant, p.weight, x, pool);
    for (int parts = 0; parts < 16; parts++) {
      auto y = residual;
      Tensor yt = matrix(y, rows, wide).cols(3, out);
      Epilogue e;
      if (parts & 1) e.bias = view(bias.data(), DType::f32, {out});
      if (parts & 2) e.residual = parts & 8 ? matrix(elsewhere, rows, wider).cols(4, out) : yt;
      if (parts & 4) e.scale = 0.3f;
      LinearScratch scratch;
      cpu_linear(yt, matrix(wide_x, rows, 2 * in).cols(0, in), p.weight, e, pool, *variant.kernels, scratch);
      for (int64_t r = 0; r < rows; r++)
        for (int64_t n = 0; n < wide; n++) {
          float expected = residual[size_t(r * wide + n)];
          if (n >= 3 && n < 3 + out) {
            float sum = plain[size_t(r * out + n - 3)];
            if (parts & 1) sum += bias[size_t(n - 3)];
            if (parts & 4) sum *= 0.3f;
            if (parts & 8) expected = elsewhere[size_t(r * wider + n + 1)];
            expected = parts & 2 ? expected + sum : sum;
          }
          ASSERT_EQ(y[size_t(r * wide + n)], expected) << variant.name << " parts " << parts << " row " << r << " column " << n;
        }
    }
  }
}

// NaN and infinity stay visible and stay in their row; tiny values become nothing rather than garbage.
TEST_P(LinearTest, OddValuesStayInTheirRow) {
  const int64_t in = whole(64), out = 33;
  Packed p = make_weight(codec, out, in, 12, pool);
  for (const Variant& variant : variants()) {
    auto x = activations(6, in, 13);
    auto before = run(variant, p.weight, x, pool);
    x[1 * in + 40] = NAN;
    x[2 * in + 3] = INFINITY;
    for (int64_t k = 0; k < in; k++) x[size_t(4 * in + k)] = 1e-40f;
    auto y = run(variant, p.weight, x, pool);
    for (int64_t n = 0; n < out; n++) {
      EXPECT_TRUE(std::isnan(y[size_t(1 * out + n)]));
      EXPECT_FALSE(std::isfinite(y[size_t(2 * out + n)]));
      EXPECT_LT(std::fabs(y[size_t(4 * out + n)]), 1e-36);
      for (int64_t r : {0, 3, 5}) EXPECT_EQ(y[size_t(r * out + n)], before[size_t(r * out + n)]);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, LinearTest, testing::ValuesIn(codecs().begin(), codecs().end()),
                         [](const auto& info) { return std::string(info.param->name); });

TEST(Linear, WrongShapesAreNamed) {
  ThreadPool pool(1);
  Packed p = make_weight(get_codec("f32"), 4, 8, 1, pool);
  auto x = normal(2 * 7, 1);
  std::vector<float> y(2 * 4);
  LinearScratch scratch;
  EXPECT_THROW(cpu_linear(matrix(y, 2, 4), matrix(x, 2, 7), p.weight, {}, pool, linear_kernels(Isa::scalar), scratch), Error);
}

}  // namespace
}  // namespace mr
