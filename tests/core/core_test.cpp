#include <gtest/gtest.h>

#include <atomic>
#include <numeric>

#include "core/arena.h"
#include "core/companion.h"
#include "core/error.h"
#include "core/isa.h"
#include "core/tensor.h"
#include "core/thread_pool.h"

namespace mr {

TEST(Tensor, SlicesKeepTheirStride) {
  std::vector<float> data(24);
  std::iota(data.begin(), data.end(), 0.0f);
  Tensor t = view(data.data(), DType::f32, {4, 6});
  Tensor s = t.rows(1, 2).cols(2, 3);
  EXPECT_EQ(shape_string(s), "[2, 3]");
  EXPECT_FALSE(s.contiguous());
  EXPECT_EQ(s.row<float>(0)[0], 8);
  EXPECT_EQ(s.row<float>(1)[2], 16);
  EXPECT_THROW(s.reshape({6}), Error);
  EXPECT_EQ(t.reshape({2, 12}).row<float>(1)[0], 12);
}

TEST(Arena, HasWhatWasPlannedAndNoMore) {
  Arena arena(1024);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(arena.take(1024)) % 64, 0u);
  EXPECT_EQ(arena.take(100), arena.take(1024));
  EXPECT_THROW(arena.take(1025), Error);
}

TEST(ThreadPool, EveryPieceOnce) {
  for (int threads = 1; threads <= 8; threads++) {
    ThreadPool pool(threads);
    for (int round = 0; round < 200; round++) {
      std::vector<std::atomic<int>> seen(97);
      pool.parallel(97, 5, [&](int64_t begin, int64_t end, int worker) {
        EXPECT_LT(worker, threads);
        for (int64_t i = begin; i < end; i++) seen[size_t(i)]++;
      });
      for (auto& n : seen) EXPECT_EQ(n, 1);
    }
  }
}

TEST(Companion, WorksBesideTheCallerAndIsWaitedFor) {
  Companion companion;
  std::atomic<int> meeting{0};
  auto meet = [&] {  // returns only if both are there at once
    meeting++;
    while (meeting < 2) std::this_thread::yield();
  };
  companion.run(meet, meet);
  for (int i = 0; i < 1000; i++) {
    int here = 0, there = 0;
    companion.run([&] { here = i; }, [&] { there = i; });
    ASSERT_EQ(here + there, 2 * i);
  }
  bool done = false;
  auto slow = [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    done = true;
  };
  EXPECT_THROW(companion.run([] { throw Error("no"); }, slow), Error);
  EXPECT_TRUE(done);
}

TEST(ThreadPool, AnErrorReachesTheCaller) {
  ThreadPool pool(3);
  auto broken = [&](int64_t begin, int64_t, int) { check(begin < 50, "piece {} is broken", begin); };
  EXPECT_THROW(pool.parallel(100, 1, broken), Error);
  std::atomic<int> n{0};
  pool.parallel(10, 1, [&](int64_t, int64_t, int) { n++; });
  EXPECT_EQ(n, 10);
}

TEST(Isa, UnknownNamesAreRefused) {
  EXPECT_EQ(isa_from("scalar"), Isa::scalar);
  EXPECT_THROW(isa_from("mmx"), Error);
  for (Isa isa : available_isas()) EXPECT_EQ(isa_from(name_of(isa)), isa);
}

}  // namespace mr
