// Rope frequencies against the formulas of transformers' modeling_rope_utils, worked out in double precision by a few lines of Python
// (no code of ours): f = theta^(-2i/dim), and what a scaling makes of it.
#include "model/rope.h"

#include <gtest/gtest.h>

#include <cmath>

namespace mr {
namespace {

void expect_frequencies(const RopeSpec& spec, const std::vector<double>& expected, const char* what) {
  RopeTable table = make_rope(spec);
  ASSERT_EQ(table.inv_freq.size(), expected.size()) << what;
  for (size_t i = 0; i < expected.size(); i++) EXPECT_NEAR(table.inv_freq[i] / expected[i], 1, 2e-6) << what << ", pair " << i;
}

RopeSpec rope_of(RopeSpec::Scaling scaling, float theta, int original, float factor) {
  return {.scaling = scaling, .dim = 16, .theta = theta, .factor = factor, .original = original};
}

// The ramp runs from max(low, 0) to min(high, dim - 1), where low and high are the dimensions that turn beta_fast and beta_slow times.
TEST(Rope, YarnClampsItsRamp) {
  expect_frequencies(rope_of(RopeSpec::Scaling::yarn, 10000, 4096, 8),
                     {1, 0.316227766, 0.1, 0.02470529422, 0.005625, 0.001087032946, 0.000125, 3.952847075e-05}, "both ends inside");
  expect_frequencies(rope_of(RopeSpec::Scaling::yarn, 10000, 128, 4),
                     {1, 0.2371708245, 0.05, 0.00790569415, 0.0025, 0.000790569415, 0.00025, 7.90569415e-05}, "low is below 0");
  expect_frequencies(rope_of(RopeSpec::Scaling::yarn, 10000, 6, 4),
                     {1, 0.0790569415, 0.025, 0.00790569415, 0.0025, 0.000790569415, 0.00025, 7.90569415e-05},
                     "low is below 0 and high is 0");
  RopeSpec steep = rope_of(RopeSpec::Scaling::yarn, 10, 100000, 4);
  steep.beta_fast = 10000;
  expect_frequencies(steep, {1, 0.7498942093, 0.5322158971, 0.3765147352, 0.2654054465, 0.1863222197, 0.1301954568, 0.09048895433},
                     "high is above dim - 1");
  RopeSpec smooth = rope_of(RopeSpec::Scaling::yarn, 10000, 4096, 4);
  smooth.truncate = false;
  expect_frequencies(smooth, {1, 0.316227766, 0.1, 0.02861360881, 0.006556971521, 0.001285632031, 0.00025, 7.90569415e-05},
                     "not truncated");
}

// 0.1 mscale ln(factor) + 1, of mscale over mscale_all_dim where both are given (DeepSeek); a given attention_factor wins.
TEST(Rope, YarnScalesAttention) {
  RopeSpec r = rope_of(RopeSpec::Scaling::yarn, 10000, 4096, 40);
  EXPECT_NEAR(make_rope(r).scale, 1.3688879, 1e-6);
  r.mscale = 0.707f;
  EXPECT_NEAR(make_rope(r).scale, 1.3688879, 1e-6) << "mscale alone says nothing";
  r.mscale_all_dim = 1;
  EXPECT_NEAR(make_rope(r).scale, 0.92104236, 1e-6);
  r.attention_factor = 1.25f;
  EXPECT_EQ(make_rope(r).scale, 1.25f);
  EXPECT_EQ(make_rope(rope_of(RopeSpec::Scaling::yarn, 10000, 4096, 1)).scale, 1);
}

TEST(Rope, Llama3DividesLongWavelengthsAndSmoothsBetween) {
  expect_frequencies(rope_of(RopeSpec::Scaling::llama3, 500000, 8192, 8),
                     {1, 0.1939227447, 0.03760603093, 0.007292664737, 0.000524846161, 3.428102196e-05, 6.647869871e-06, 1.289173172e-06},
                     "Llama 3.1");
  RopeSpec wide = rope_of(RopeSpec::Scaling::llama3, 10000, 1024, 8);
  wide.high_freq_factor = 16;
  expect_frequencies(wide, {1, 0.316227766, 0.1, 0.01161504037, 0.001617352193, 0.0003952847075, 0.000125, 3.952847075e-05}, "a wide ramp");
}

TEST(Rope, LinearAndProportionalDivide) {
  std::vector<double> plain, linear, proportional;
  for (int i = 0; i < 8; i++) {
    plain.push_back(std::pow(10000.0, -i / 8.0));
    linear.push_back(plain.back() / 4);
  }
  expect_frequencies(rope_of(RopeSpec::Scaling::none, 10000, 0, 1), plain, "plain");
  expect_frequencies(rope_of(RopeSpec::Scaling::linear, 10000, 0, 4), linear, "linear");
  RopeSpec r = rope_of(RopeSpec::Scaling::proportional, 10000, 1024, 2);
  r.pairs = 3;
  RopeTable table = make_rope(r);
  for (size_t i = 0; i < 8; i++) EXPECT_NEAR(table.inv_freq[i], i < 3 ? plain[i] / 2 : 0, 1e-6) << i;
}

// sqrt(1 + ln(factor) / ln(original)); each pair is divided by its own factor.
TEST(Rope, LongropeDividesEachPair) {
  RopeSpec r = rope_of(RopeSpec::Scaling::longrope, 10000, 4096, 32);
  r.short_factor = {1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5};
  r.long_factor = {1, 2, 4, 8, 16, 32, 64, 128};
  RopeTable table = make_rope(r);
  EXPECT_NEAR(table.scale, 1.1902381, 1e-6);
  for (size_t i = 0; i < 8; i++) {
    const double plain = std::pow(10000.0, -double(i) / 8);
    EXPECT_NEAR(table.inv_freq[i] * r.short_factor[i] / plain, 1, 1e-6) << i;
    EXPECT_NEAR(table.long_inv_freq[i] * r.long_factor[i] / plain, 1, 1e-6) << i;
  }
}

}  // namespace
}  // namespace mr
