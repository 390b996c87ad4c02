// Limits of the queue, and that entries are released when requests end.
#include "serve/queue.h"

#include <gtest/gtest.h>

namespace mr {
namespace {

void expect_length(const Queue& queue, int64_t answers, int64_t tokens) {
  EXPECT_EQ(queue.length().answers, answers);
  EXPECT_EQ(queue.length().tokens, tokens);
}

TEST(Queue, HoldsAsManyAnswersAndTokensAsItSays) {
  Queue queue(4, 100);
  auto first = queue.join({3, 10});
  EXPECT_THROW(queue.join({2, 1}), ApiError);
  EXPECT_THROW(queue.join({1, 91}), ApiError);
  expect_length(queue, 3, 10);
  auto last = queue.join({1, 90});
  expect_length(queue, 4, 100);
  EXPECT_THROW(queue.join({1, 0}), ApiError);
}

TEST(Queue, AloneAnyoneMayCome) {
  Queue queue(4, 100);
  auto large = queue.join({5, 1000});
  expect_length(queue, 5, 1000);
  EXPECT_THROW(queue.join({1, 1}), ApiError);
}

TEST(Queue, APlaceIsLeftOnceHoweverItsOwnerGoes) {
  Queue queue(4, 100);
  {
    auto place = queue.join({2, 20});
    Queue::Place moved = std::move(place);
    expect_length(queue, 2, 20);
    moved.leave();
    expect_length(queue, 0, 0);
  }
  expect_length(queue, 0, 0);
  try {
    auto place = queue.join({1, 10});
    throw ApiError(400, "refused after all");
  } catch (const ApiError&) {
  }
  expect_length(queue, 0, 0);
}

TEST(Queue, PartsOfAPlaceAreLeftOneByOne) {
  Queue queue(4, 100);
  {
    auto place = queue.join({3, 30});
    auto part = place.split({1, 5});
    expect_length(queue, 3, 30);
    part.leave();
    expect_length(queue, 2, 25);
  }
  expect_length(queue, 0, 0);
}

}  // namespace
}  // namespace mr
