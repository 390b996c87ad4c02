// Lengths, prompts and arrivals of a load, and what its outcomes amount to: against mathematics.
#include "bench/requests.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "core/error.h"

namespace mr {
namespace {

TEST(Load, PercentilesByInterpolation) {
  std::vector<double> v{40, 10, 30, 20};
  EXPECT_DOUBLE_EQ(percentile(v, 0), 10);
  EXPECT_DOUBLE_EQ(percentile(v, 0.5), 25);
  EXPECT_DOUBLE_EQ(percentile(v, 0.9), 37);  // place 2.7 of 0..3
  EXPECT_DOUBLE_EQ(percentile(v, 1), 40);
  EXPECT_DOUBLE_EQ(percentile({5}, 0.99), 5);
  EXPECT_DOUBLE_EQ(percentile({}, 0.5), 0);
  std::vector<double> line(101);
  for (int i = 0; i <= 100; i++) line[size_t(i)] = 2.0 * i;
  Spread s = spread_of(line);
  EXPECT_DOUBLE_EQ(s.mean, 100);
  EXPECT_DOUBLE_EQ(s.p50, 100);
  EXPECT_DOUBLE_EQ(s.p90, 180);
  EXPECT_DOUBLE_EQ(s.p99, 198);
}

// Kolmogorov and Smirnov's distance of gaps from 1 - exp(-x): above 2 / sqrt(n) once in 1,500 times.
double distance_from_exponential(std::vector<double> gaps) {
  std::ranges::sort(gaps);
  double worst = 0;
  for (size_t i = 0; i < gaps.size(); i++)
    worst = std::max(worst, std::abs((double(i) + 0.5) / double(gaps.size()) - (1 - std::exp(-gaps[i]))));
  return worst;
}

// Gaps of a Poisson process are exponential: mean and deviation are 1 / rate, and a share of 1 - exp(-x) is below x / rate.
TEST(Load, ArrivalsAreAPoissonProcess) {
  const size_t n = 100000;
  const double rate = 8;
  std::vector<double> at = poisson_arrivals(rate, n, 3), gaps(n);
  double sum = 0, squares = 0;
  for (size_t i = 0; i < n; i++) {
    gaps[i] = (at[i] - (i ? at[i - 1] : 0)) * rate;
    ASSERT_GE(gaps[i], 0);
    sum += gaps[i];
    squares += gaps[i] * gaps[i];
  }
  double mean = sum / n;
  EXPECT_NEAR(mean, 1, 5 / std::sqrt(n));                                   // 5 standard errors
  EXPECT_NEAR(std::sqrt(squares / n - mean * mean), 1, 10 / std::sqrt(n));  // the error of the deviation is sqrt(2) larger
  EXPECT_LT(distance_from_exponential(gaps), 2 / std::sqrt(n));
  EXPECT_EQ(poisson_arrivals(rate, 50, 3), std::vector<double>(at.begin(), at.begin() + 50));
  EXPECT_NE(poisson_arrivals(rate, 50, 4), std::vector<double>(at.begin(), at.begin() + 50));
}

// No load begins with a crowd: the first gaps of many seeds, that before the first request among them, are like all others.
TEST(Load, ArrivalsBeginLikeThat) {
  const size_t n = 4000;
  for (size_t place : {0, 1, 2, 5}) {
    std::vector<double> gaps;
    for (uint64_t seed = 0; seed < n; seed++) {
      std::vector<double> at = poisson_arrivals(3, place + 1, seed);
      gaps.push_back(3 * (at[place] - (place ? at[place - 1] : 0)));
    }
    EXPECT_LT(distance_from_exponential(gaps), 2 / std::sqrt(n)) << place;
  }
}

TEST(Load, LengthsAreUniform) {
  Lengths range = parse_lengths("64-67");
  std::vector<int> count(4);
  for (uint32_t i = 0; i < 4000; i++) count.at(size_t(range.draw(1, i, 0) - 64))++;
  for (int c : count) EXPECT_NEAR(c, 1000, 5 * std::sqrt(4000 * 0.25 * 0.75));
  EXPECT_EQ(parse_lengths("128").draw(9, 9, 9), 128);
  for (const char* bad : {"", "0", "-1", "5-3", "a", "1-", "1-b", "99999999"}) EXPECT_THROW(parse_lengths(bad), Error) << bad;
}

TEST(Load, PromptsAreTheSameForEveryServerAndShareNothing) {
  Workload w{.prompt = {16, 32}, .answer = {8, 8}, .model = "m", .seed = 5};
  std::set<std::vector<int>> beginnings;
  for (uint32_t i = 0; i < 200; i++) {
    Json body = Json::parse(request_body(w, i));
    auto ids = body["prompt"].get<std::vector<int>>();
    EXPECT_GE(ids.size(), 16u);
    EXPECT_LE(ids.size(), 32u);
    beginnings.insert({ids.begin(), ids.begin() + 4});
    EXPECT_EQ(body["max_tokens"], 8);
    EXPECT_EQ(body["ignore_eos"], true);
    EXPECT_EQ(body["stream_options"]["include_usage"], true);
    EXPECT_EQ(request_body(w, i), body.dump());
  }
  EXPECT_EQ(beginnings.size(), 200u);
  Workload later = w, other = w;
  later.first = 10;
  other.seed = 6;
  EXPECT_EQ(request_body(later, 0), request_body(w, 10));
  EXPECT_NE(request_body(other, 0), request_body(w, 0));
}

TEST(Load, SharedPrefixIsSharedAndNoMore) {
  Workload w{.prompt = {64, 64}, .answer = {8, 8}, .shared_prefix = 48, .model = "m"};
  auto ids = [&](uint32_t i) { return Json::parse(request_body(w, i))["prompt"].get<std::vector<int>>(); };
  auto a = ids(0), b = ids(1);
  EXPECT_TRUE(std::equal(a.begin(), a.begin() + 48, b.begin()));
  EXPECT_FALSE(std::equal(a.begin() + 48, a.end(), b.begin() + 48));
}

TEST(Load, ChatAsksWithWords) {
  Workload w{.prompt = {20, 20}, .answer = {8, 8}, .chat = true, .model = "m"};
  Json body = Json::parse(request_body(w, 0));
  std::string text = body["messages"][0]["content"];
  EXPECT_EQ(std::ranges::count(text, ' '), 19);
  EXPECT_EQ(path_of(w), "/v1/chat/completions");
  EXPECT_FALSE(body.contains("prompt"));
}

TEST(Load, ReportsWhatHappened) {
  // Three good answers, one late first token, one slow stream, one refused.
  std::vector<Outcome> outcomes;
  for (double sent : {1.0, 2.0, 3.0}) outcomes.push_back({.sent = sent, .first = sent + 0.1, .done = sent + 1.1, .n_tokens = 11});
  outcomes.push_back({.sent = 1, .first = 3, .done = 4, .n_tokens = 11});      // TTFT 2 s, 0.1 s a token
  outcomes.push_back({.sent = 1, .first = 1.1, .done = 6.1, .n_tokens = 11});  // 0.5 s a token
  outcomes.push_back({.sent = 1, .done = 1.5, .error = "429 Too Many Requests"});
  LoadReport r = summarize(outcomes, {.ttft = 0.5, .tpot = 0.2});
  EXPECT_EQ(r.requests, 6);
  EXPECT_EQ(r.failed, 1);
  EXPECT_EQ(r.good, 3);
  EXPECT_EQ(r.errors, (std::map<std::string, int>{{"429 Too Many Requests", 1}}));
  EXPECT_DOUBLE_EQ(r.seconds, 5.1);
  EXPECT_EQ(r.tokens, 55);
  EXPECT_NEAR(r.ttft.mean, (4 * 0.1 + 2) / 5, 1e-12);
  EXPECT_NEAR(r.tpot.p50, 0.1, 1e-12);
  EXPECT_NEAR(r.e2e.p50, 1.1, 1e-12);
  Json j = report_json(r, {.ttft = 0.5, .tpot = 0.2});
  EXPECT_NEAR(j["tokens_per_s"].get<double>(), 55 / 5.1, 1e-9);
  EXPECT_NEAR(j["goodput_requests_per_s"].get<double>(), 3 / 5.1, 1e-9);
  EXPECT_EQ(summarize({}).requests, 0);
}

}  // namespace
}  // namespace mr
