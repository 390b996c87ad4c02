// What a row of bench says of its runs and of the limit beside them: against mathematics.
#include "bench/measure.h"

#include <gtest/gtest.h>

namespace mr {
namespace {

TEST(Measured, TheMedianIsOneOfTheRuns) {
  EXPECT_EQ(median_run({5}), 0u);
  EXPECT_EQ(median_run({3, 1, 2}), 2u);
  EXPECT_EQ(median_run({1, 2}), 1u);  // of an even number the slower of the two in the middle
  EXPECT_EQ(median_run({4, 9, 1, 7}), 3u);
  Measured m{.seconds = {2, 1, 3}};
  EXPECT_EQ(m.best(), 1);
  EXPECT_EQ(m.median(), 2);
  EXPECT_EQ(m.spread(), 1);
  EXPECT_EQ(m.median_of(std::vector<int>{20, 10, 30}), 20);
  EXPECT_EQ(m.median_of(std::vector<int>{99, 20, 10, 30}), 20);  // the first run did not count
}

TEST(Measured, ALimitThatMovedSaysSo) {
  Measured m{.seconds = {1}};
  m.limit.bound = Roof::memory;
  m.rates = {40e9, 42e9, 44e9};  // 4 of 42: less than 15 %
  EXPECT_FALSE(m.has_moved());
  EXPECT_EQ(bound_text(m), "memory at 42.00 GB/s");
  m.rates = {60e9, 40e9, 33e9};
  EXPECT_DOUBLE_EQ(m.moved(), 27.0 / 40);
  EXPECT_EQ(bound_text(m), "memory at 40.00 GB/s (33.00 GB/s to 60.00 GB/s)");
  m.limit.bound = Roof::compute;
  m.others = 0.5;
  EXPECT_EQ(bound_text(m), "compute at ~40.00 GFLOP/s (33.00 GFLOP/s to 60.00 GFLOP/s)");
}

}  // namespace
}  // namespace mr
