// Bodies with valid, odd and malformed framing.
#include <gtest/gtest.h>

#include "serve/body_reader.h"

namespace mr {
namespace {

using Status = BodyReader::Status;
const BodyReader::Limits limits{.body = 1000, .framing = 100};

struct Read {
  Status status;
  std::string body;
  size_t n_taken;
};

// In pieces of `step` bytes.
Read read_chunked(const std::string& bytes, size_t step, const BodyReader::Limits& l = limits) {
  BodyReader reader(std::nullopt, l, Charge());
  size_t n = 0;
  while (n < bytes.size() && reader.status() == Status::more) {
    const size_t taken = reader.feed(std::string_view(bytes).substr(n, step));
    if (taken == 0) break;
    n += taken;
  }
  return {reader.status(), reader.body, n};
}

TEST(BodyReader, ChunksInAnyPieces) {
  const std::string bytes = "3\r\nabc\r\n0a;x=\"y\";z\r\n0123456789\r\n1 \r\n\n\r\n0;last\r\nA: b\r\nC: d\r\n\r\n";
  for (size_t step = 1; step <= bytes.size(); step++) {
    Read r = read_chunked(bytes + "GET", step);
    EXPECT_EQ(r.status, Status::done) << step;
    EXPECT_EQ(r.body, "abc0123456789\n") << step;
    EXPECT_EQ(r.n_taken, bytes.size()) << step;  // what follows is not the body's
  }
}

TEST(BodyReader, WhatMayBeReadInTwoWaysIsBroken) {
  for (const char* bytes : {"\r\n",
                            "g\r\n",
                            "-1\r\n",
                            "+1\r\n",
                            "0x1\r\n",
                            " 1\r\nx",
                            "1\nx\r\n0\r\n\r\n",
                            "1\r\rx",
                            "1\r\nxy\r\n",
                            "1\r\nx\n",
                            "1\r\nx\r0",
                            ";a\r\n",
                            "1;a\nb\r\nx",
                            "1;a\rb",
                            "1;\x01\r\n",
                            "0\r\nA: b\n\r\n",
                            "0\r\nA: b\rc",
                            "0\r\n\rx",
                            "0\r\n\n",
                            "1 x\r\ny\r\n",
                            "1\t=\r\ny\r\n",
                            "1 \x0b;\r\ny\r\n",
                            "1 1\r\ny\r\n",
                            "0\r\nno colon\r\n\r\n",
                            "0\r\nA: b\r\n c\r\n\r\n",
                            "0\r\n\tA: b\r\n\r\n",
                            "0\r\n: b\r\n\r\n",
                            "0\r\nA : b\r\n\r\n",
                            "0\r\nA(: b\r\n\r\n",
                            "0\r\nA\r\n\r\n",
                            "00000000000000001\r\nx",
                            "1\t\x7f\r\n"})
    for (size_t step : {1, 100}) EXPECT_EQ(read_chunked(bytes, step).status, Status::broken) << bytes;
}

TEST(BodyReader, LimitsHoldWhileReading) {
  EXPECT_EQ(read_chunked("3e8\r\n", 1).status, Status::more);
  EXPECT_EQ(read_chunked("3e9\r\n", 1).status, Status::too_large);
  EXPECT_EQ(read_chunked("ffffffffffffffff\r\n", 1).status, Status::too_large);
  EXPECT_EQ(read_chunked("3e8\r\n" + std::string(1000, 'x') + "\r\n1\r\n", 7).status, Status::too_large);
  EXPECT_EQ(read_chunked("1;" + std::string(99, 'x') + "\r\nx\r\n", 7).status, Status::more);
  Read r = read_chunked("1;" + std::string(1 << 20, 'x'), 8192);
  EXPECT_EQ(r.status, Status::too_much_framing);
  EXPECT_LT(r.n_taken, 200u);
  EXPECT_EQ(read_chunked("0\r\nX: " + std::string(65535, 'x'), 8192).status, Status::too_much_framing);
  std::string chunks, trailers = "0\r\n";
  for (int i = 0; i < 60; i++) {
    chunks += "1;a\r\nx\r\n";
    trailers += "A:\r\n";
  }
  EXPECT_EQ(read_chunked(chunks, 9).status, Status::too_much_framing);  // all of them together
  EXPECT_EQ(read_chunked(trailers, 9).status, Status::too_much_framing);
  EXPECT_EQ(read_chunked("0\r\nA:" + std::string(48, 'a') + "\r\nB:" + std::string(49, 'b'), 9).status, Status::too_much_framing);
}

TEST(BodyReader, OfAnAnnouncedLength) {
  BodyReader reader(5, limits, Charge());
  EXPECT_EQ(reader.feed("he"), 2u);
  EXPECT_EQ(reader.status(), Status::more);
  EXPECT_EQ(reader.feed("lloGET"), 3u);
  EXPECT_EQ(reader.status(), Status::done);
  EXPECT_EQ(reader.body, "hello");
  EXPECT_EQ(BodyReader(0, limits, Charge()).status(), Status::done);
  EXPECT_EQ(BodyReader(1000, limits, Charge()).status(), Status::more);
  EXPECT_EQ(BodyReader(1001, limits, Charge()).status(), Status::too_large);
  EXPECT_EQ(BodyReader(~uint64_t(0), limits, Charge()).status(), Status::too_large);
}

TEST(BodyReader, PaysForWhatComesNotForWhatIsPromised) {
  MemoryBudget budget(100000);
  {
    BodyReader reader(90000, {.body = 1 << 20}, Charge(budget));
    EXPECT_EQ(budget.used(), 0u);
    EXPECT_EQ(reader.feed("x"), 1u);
    EXPECT_LE(budget.used(), 4096u);
    Charge other(budget);
    ASSERT_TRUE(other.set(95000));
    EXPECT_EQ(reader.feed(std::string(8000, 'x')), 0u);  // nothing is lost:
    EXPECT_EQ(reader.status(), Status::no_memory);
    ASSERT_TRUE(other.set(0));
    EXPECT_EQ(reader.feed(std::string(8000, 'x')), 8000u);
    EXPECT_EQ(reader.feed(std::string(90000, 'x')), 81999u);
    EXPECT_EQ(reader.status(), Status::done);
    EXPECT_EQ(budget.used(), 90000u);
    EXPECT_EQ(budget.n_denied(), 1u);
  }
  EXPECT_EQ(budget.used(), 0u);
}

TEST(MemoryBudget, IsNeverExceededAndAlwaysGivenBack) {
  MemoryBudget budget(100);
  {
    Charge a(budget), b(budget);
    EXPECT_TRUE(a.set(60));
    EXPECT_FALSE(b.set(41));
    EXPECT_EQ(b.size(), 0u);
    EXPECT_TRUE(b.set(40));
    EXPECT_FALSE(a.set(~size_t(0)));
    EXPECT_TRUE(a.set(10));
    Charge c = std::move(b);
    EXPECT_EQ(budget.used(), 50u);
    EXPECT_EQ(budget.peak(), 100u);
    c = Charge(budget);
    EXPECT_EQ(budget.used(), 10u);
  }
  EXPECT_EQ(budget.used(), 0u);
}

TEST(MemoryBudget, OwnersOfMuchLeaveAnEighthToThoseOfLittle) {
  constexpr size_t little = Charge::little;
  MemoryBudget budget(16 * little);
  Charge a(budget), b(budget), c(budget);
  EXPECT_FALSE(a.set(14 * little + 1));
  EXPECT_FALSE(a.can_ever_be(14 * little + 1));
  EXPECT_TRUE(a.set(14 * little));
  EXPECT_FALSE(b.set(14 * little));
  EXPECT_TRUE(b.can_ever_be(14 * little));  // once `a` has gone
  EXPECT_TRUE(b.set(little));
  EXPECT_FALSE(b.set(little + 1));
  EXPECT_TRUE(c.set(little));
  EXPECT_FALSE(b.set(little + 1));
  EXPECT_TRUE(a.set(0));
  EXPECT_TRUE(b.set(2 * little));
}

}  // namespace
}  // namespace mr
