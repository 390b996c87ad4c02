// Loads against mathematics, and files of requests.
#include "bench/traffic.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace mr {
namespace {

// Logarithms of lognormal lengths are normal: their mean is that of the median, half of them lie below it.
TEST(Traffic, LengthsAreLognormal) {
  Lengths lengths = parse_lengths("lognormal:1000:0.5");
  const int n = 20000;
  double sum = 0, squares = 0, below = 0;
  for (uint32_t i = 0; i < n; i++) {
    double z = std::log(lengths.draw(3, i, 0) / 1000.0) / 0.5;
    sum += z;
    squares += z * z;
    below += z < 0;
  }
  EXPECT_NEAR(sum / n, 0, 5 / std::sqrt(n));
  EXPECT_NEAR(squares / n, 1, 5 * std::sqrt(2.0 / n));
  EXPECT_NEAR(below / n, 0.5, 2.5 / std::sqrt(n));
  Lengths wide = parse_lengths("lognormal:2:3");
  for (uint32_t i = 0; i < 2000; i++) {
    EXPECT_GE(wide.draw(1, i, 0), 1);
    EXPECT_LE(wide.draw(1, i, 0), 32);
  }
  for (const char* bad : {"lognormal:", "lognormal:0:1", "lognormal:8", "lognormal:8:", "lognormal:8:0", "lognormal:8:4", "lognormal:8:1x"})
    EXPECT_THROW(parse_lengths(bad), Error) << bad;
}

TEST(Traffic, ALoadDependsOnItsSeedAlone) {
  Workload a{.prompt = parse_lengths("10-500"), .answer = parse_lengths("lognormal:50:0.7"), .seed = 1}, b = a, other = a;
  other.seed = 2;
  int equal = 0;
  for (uint32_t i = 0; i < 100; i++) {
    EXPECT_EQ(made_up_tokens(a, i), made_up_tokens(b, i));
    EXPECT_EQ(answer_length(a, i), answer_length(b, i));
    EXPECT_EQ(int(made_up_tokens(a, i).size()), prompt_length(a, i));
    equal += prompt_length(a, i) == prompt_length(other, i);
  }
  EXPECT_LT(equal, 10);  // one in 491 by chance
}

TEST(Traffic, RequestsComeFromAFile) {
  Workload w{.answer = {9, 9}};
  w.items = parse_load(
      "{\"prompt_tokens\": 20, \"output_tokens\": 5}\n\n{\"prompt\": [1, 2, 3]}\r\n{\"prompt\": \"words\", \"max_tokens\": 7}", "f");
  ASSERT_EQ(w.items.size(), 3u);
  EXPECT_EQ(made_up_tokens(w, 0).size(), 20u);
  EXPECT_EQ(w.items[1].tokens, (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(w.items[2].text, "words");
  for (uint32_t i = 0; i < 6; i++) EXPECT_EQ(answer_length(w, i), (std::vector{5, 9, 7})[i % 3]);
  auto refusal = [](const char* lines) -> std::string {
    try {
      parse_load(lines, "load.jsonl");
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_EQ(refusal("\n"), "load.jsonl has no requests");
  EXPECT_EQ(refusal("{\"prompt_tokens\": 3}\n[1]"), "load.jsonl, line 2 is no JSON object");
  EXPECT_EQ(refusal("{\"prompt_tokens\""), "load.jsonl, line 1 is not valid JSON: something is wrong at byte 17");
  EXPECT_EQ(refusal("{\"max_tokens\": 3}"), "load.jsonl, line 1 has neither \"prompt\" nor \"prompt_tokens\"");
  EXPECT_EQ(refusal("{\"prompt_tokens\": 0}"), "load.jsonl, line 1: \"prompt_tokens\" is 0, not a number of tokens");
  EXPECT_EQ(refusal("{\"prompt_tokens\": 1, \"max_tokens\": \"all\"}"),
            "load.jsonl, line 1: \"max_tokens\" is \"all\", not a number of tokens");
  EXPECT_EQ(refusal("{\"prompt\": [1, -2]}"), "load.jsonl, line 1: \"prompt\" is neither text nor a list of token ids");
}

}  // namespace
}  // namespace mr
