// The stop matcher against the obvious implementation: look at the whole text again after every byte.
#include <gtest/gtest.h>

#include <random>

#include "decode/stop.h"

namespace mr {
namespace {

struct Expected {
  std::string text;
  bool stopped = false;
};

Expected obvious(const std::string& text, const std::vector<std::string>& stops) {
  for (size_t n = 1; n <= text.size(); n++) {
    size_t cut = std::string::npos;
    for (const std::string& stop : stops) cut = std::min(cut, text.substr(0, n).find(stop));
    if (cut != std::string::npos) return {text.substr(0, cut), true};
  }
  return {text, false};
}

std::string random_text(std::mt19937& rng, int length) {
  std::string s;
  for (int i = 0; i < length; i++) s += char('a' + rng() % 3);
  return s;
}

TEST(StopMatcher, EqualsTheObviousImplementationHoweverTheTextIsCut) {
  std::mt19937 rng(7);
  int n_stopped = 0;
  for (int round = 0; round < 20000; round++) {
    std::vector<std::string> stops;
    for (int i = int(rng() % 4); i > 0; i--) stops.push_back(random_text(rng, 1 + int(rng() % 6)));
    std::string text = random_text(rng, int(rng() % 24));
    Expected expected = obvious(text, stops);

    StopMatcher matcher(stops);
    std::string out;
    bool stopped = false;
    for (size_t at = 0; at < text.size() && !stopped;) {
      size_t n = std::min(text.size() - at, size_t(1 + rng() % 5));
      stopped = matcher.push(std::string_view(text).substr(at, n), out);
      at += n;
      ASSERT_TRUE(expected.text.starts_with(out)) << "emitted too much of '" << text << "': '" << out << "'";
    }
    if (!stopped) matcher.finish(out);
    ASSERT_EQ(out, expected.text) << text;
    ASSERT_EQ(stopped, expected.stopped) << text;
    n_stopped += stopped;
  }
  EXPECT_GT(n_stopped, 2000);
  EXPECT_LT(n_stopped, 18000);
}

TEST(StopMatcher, HoldsBackNoMoreThanItMust) {
  std::vector<std::string> stops = {"\n\nUser:", "END"};
  StopMatcher matcher(stops);
  std::string out;
  EXPECT_FALSE(matcher.push("Hello\n", out));
  EXPECT_EQ(out, "Hello");
  EXPECT_FALSE(matcher.push("there E", out));
  EXPECT_EQ(out, "Hello\nthere ");
  EXPECT_FALSE(matcher.push("N", out));
  EXPECT_FALSE(matcher.push("d", out));
  EXPECT_EQ(out, "Hello\nthere ENd");
  EXPECT_FALSE(matcher.push("\n", out));
  EXPECT_FALSE(matcher.push("\nUs", out));
  EXPECT_TRUE(matcher.push("er: more", out));
  EXPECT_EQ(out, "Hello\nthere ENd");
}

}  // namespace
}  // namespace mr
