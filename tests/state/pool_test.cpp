#include "state/pool.h"

#include <gtest/gtest.h>

#include <set>

namespace mr {

TEST(UnitPool, HandsOutEveryUnitButTheReservedOne) {
  UnitPool pool(5);
  EXPECT_EQ(pool.n_units(), 4);
  std::set<int32_t> taken;
  for (int i = 0; i < 4; i++) taken.insert(pool.take());
  EXPECT_EQ(taken, (std::set<int32_t>{1, 2, 3, 4}));
  EXPECT_EQ(pool.n_free(), 0);
  EXPECT_THROW(pool.take(), Error);
}

TEST(UnitPool, TakesTheUnitFreedLast) {
  UnitPool pool(5);
  int32_t a = pool.take(), b = pool.take();
  pool.release(a);
  pool.release(b);
  EXPECT_EQ(pool.take(), b);
  EXPECT_EQ(pool.take(), a);
}

TEST(UnitPool, FreesAUnitWithItsLastReference) {
  UnitPool pool(2);
  int32_t unit = pool.take();
  pool.retain(unit);
  pool.release(unit);
  EXPECT_EQ(pool.n_free(), 0);
  pool.release(unit);
  EXPECT_EQ(pool.n_free(), 1);
}

TEST(UnitPool, ARunIsOfNeighbours) {
  UnitPool pool(7);
  EXPECT_EQ(pool.find_run(6), 1);
  EXPECT_EQ(pool.find_run(7), -1);
  pool.take_run(1, 6);
  EXPECT_EQ(pool.find_run(1), -1);
  for (int32_t unit : {1, 2, 4, 5, 6}) pool.release(unit);
  EXPECT_EQ(pool.find_run(2), 1);
  EXPECT_EQ(pool.find_run(3), 4);
  EXPECT_EQ(pool.find_run(4), -1) << "unit 3 is in between";
}

TEST(UnitPool, CountsAsIdleWhatOnlyTheTreeHolds) {
  UnitPool pool(3);
  int32_t unit = pool.take();
  pool.cache(unit);
  EXPECT_EQ(pool.n_idle(), 0);
  pool.release(unit);
  EXPECT_EQ(pool.n_idle(), 1);
  EXPECT_EQ(pool.n_free(), 1);
  EXPECT_EQ(pool.n_available(), 2);
  pool.retain(unit);
  EXPECT_EQ(pool.n_idle(), 0);
  pool.uncache(unit);
  EXPECT_EQ(pool.n_idle(), 0);
  pool.release(unit);
  EXPECT_EQ(pool.n_free(), 2);
}

}  // namespace mr
