// A stranger's template ends with a sentence, soon and in little memory, whatever it does. Time is bounded generously: what
// decides is the meter, and the bound on time catches work that it does not see.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>
#include <fstream>
#include <set>
#include <thread>

#include "core/error.h"
#include "hostile_templates.h"
#include "text/jinja/evaluator.h"
#include "text/jinja/parser.h"

namespace mr::jinja {
namespace {

using Clock = std::chrono::steady_clock;

struct Outcome {
  std::string error;
  double seconds = 0;
  size_t work = 0, peak = 0, left = 0;  // left: bytes that were never given back
};

Outcome outcome_of(const std::string& source, const TemplateLimits& limits) {
  Outcome out;
  auto begin = Clock::now();
  {
    Meter meter(limits);
    try {
      Body body = parse(source);
      Evaluator(meter, {}).render(body);
    } catch (const Error& error) {
      out.error = error.what();
    }
    out.work = meter.spent();
    out.peak = meter.peak();
    out.left = meter.held();
  }
  out.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  return out;
}

size_t peak_resident_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<size_t>(usage.ru_maxrss) * 1024;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool sanitized = true;
#else
constexpr bool sanitized = false;
#endif

TEST(JinjaMeter, hostile_templates_end_with_a_sentence) {
  TemplateLimits limits{.work = 10'000'000, .bytes = size_t{16} << 20};
  size_t before = peak_resident_bytes();
  auto all = hostile_templates();
  ASSERT_GT(all.size(), 150u);
  for (const auto& [name, source] : all) {
    Outcome outcome = outcome_of(source, limits);
    EXPECT_NE(outcome.error, "") << name;
    EXPECT_LT(outcome.error.size(), 1200u) << name;
    EXPECT_LT(outcome.seconds, sanitized ? 20 : 2) << name;
    EXPECT_EQ(outcome.left, 0u) << name;
  }
  EXPECT_LT(peak_resident_bytes() - before, size_t{sanitized ? 2000 : 150} << 20);
}

// For a quiet machine: what the real limits come to.
TEST(JinjaMeter, DISABLED_hostile_templates_at_full_limits) {
  double slowest = 0;
  size_t peak = 0;
  for (const auto& [name, source] : hostile_templates()) {
    Outcome outcome = outcome_of(source, {});
    peak = std::max(peak, outcome.peak);
    slowest = std::max(slowest, outcome.seconds);
    fmt::print("{:6.1f} ms {:5.1f} M units {:5.1f} MB  {}: {}\n", outcome.seconds * 1e3, outcome.work / 1e6, outcome.peak / 1e6, name,
               outcome.error.substr(0, 90));
    EXPECT_NE(outcome.error, "") << name;
    EXPECT_LT(outcome.seconds, 0.2) << name;
  }
  fmt::print("slowest {:.1f} ms, values {:.1f} MB, resident {:.1f} MB\n", slowest * 1e3, peak / 1e6, peak_resident_bytes() / 1e6);
}

// A thousand turns of a page each, through every template of the fixtures that walks over messages, take a part of the budget.
TEST(JinjaMeter, long_conversations_fit) {
  OrderedJson messages = OrderedJson::array();
  const std::string page = [] {
    std::string text = " <think>\nOf \"this\"\n</think>\n";
    while (text.size() < 4000) text += "a line of a conversation, and the like\n";
    return text;
  }();
  for (int i = 0; i < 1000; ++i) messages.push_back({{"role", i % 2 == 0 ? "user" : "assistant"}, {"content", page}});
  std::ifstream file(MR_FIXTURES "/text/templates.jsonl");
  std::set<std::string> sources;
  for (std::string line; std::getline(file, line);) {
    std::string source = OrderedJson::parse(line)["template"];
    if (source.find("messages") != std::string::npos && source.size() > 300) sources.insert(source);
  }
  ASSERT_GE(sources.size(), 4u);
  for (const std::string& source : sources) {
    Meter meter;
    Variables variables;
    variables.emplace_back("messages", jinja::from_json(meter, messages));
    variables.emplace_back("bos_token", Value::text(meter, "<s>"));
    variables.emplace_back("eos_token", Value::text(meter, "</s>"));
    variables.emplace_back("add_generation_prompt", true);
    Body body = parse(source);
    EXPECT_GT(Evaluator(meter, std::move(variables)).render(body).size(), 2'000'000u) << source;
    EXPECT_LT(meter.spent(), TemplateLimits().work / 2) << source;
    EXPECT_LT(meter.peak(), TemplateLimits().bytes / 2) << source;
  }
}

TEST(JinjaMeter, stops_when_told) {
  Body body = parse("{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}");
  auto error_of = [&](const TemplateLimits& limits) {
    Meter meter(limits);
    try {
      Evaluator(meter, {}).render(body);
    } catch (const Stopped& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  constexpr size_t unbounded = size_t{1} << 50;
  auto begin = Clock::now();
  EXPECT_NE(error_of({.work = unbounded, .allowance = {.deadline = begin + std::chrono::milliseconds(20)}}).find("longer than"),
            std::string::npos);
  std::stop_source stop;
  std::jthread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    stop.request_stop();
  });
  EXPECT_NE(error_of({.work = unbounded, .allowance = {.stop = stop.get_token()}}).find("stopped"), std::string::npos);
  EXPECT_LT(std::chrono::duration<double>(Clock::now() - begin).count(), 10.0);
}

TEST(JinjaMeter, integers_at_the_edge_do_not_wrap) {
  const std::string most = "9223372036854775807", least = "(-9223372036854775807 - 1)";
  for (const std::string& n : {most, least, std::string("4294967296"), std::string("-1")}) {
    SCOPED_TRACE(n);
    auto text = [&](const std::string& expression) {
      Meter meter;
      Body body = parse("{% set n = " + n + " %}{{ " + expression + " }}");
      return Evaluator(meter, {}).render(body);
    };
    bool negative = n.starts_with("-") || n.starts_with("(");
    // What Python and jinja2 say of these.
    EXPECT_EQ(text("'a b c'.split(' ', n)"), "['a', 'b', 'c']");
    EXPECT_EQ(text("'a b c'.rsplit(' ', n)"), "['a', 'b', 'c']");
    EXPECT_EQ(text("'abc'|truncate(n, leeway=n)"), negative ? "..." : "abc");
    EXPECT_EQ(text("'aa'.replace('a', 'b', n)"), "bb");
    EXPECT_EQ(text("'aa'.replace('', 'b', n)"), "babab");
    EXPECT_EQ(text("'abc'.find('c', n)"), n == "-1" || negative ? "2" : "-1");
    EXPECT_EQ(text("[1, 2][n:]"), n == "-1" ? "[2]" : negative ? "[1, 2]" : "[]");
    EXPECT_EQ(text("[1, 2][:n]"), n == "-1" ? "[1]" : negative ? "[]" : "[1, 2]");
    EXPECT_EQ(text("[1, 2][::n]"), negative ? (n == "-1" ? "[2, 1]" : "[2]") : "[1]");
    EXPECT_EQ(text("'ab'[n:n:n]"), "");
    EXPECT_EQ(text("[1, 2][n] is defined"), n == "-1" ? "True" : "False");
    EXPECT_EQ(text("'ab'[n] is defined"), n == "-1" ? "True" : "False");
    EXPECT_EQ(text("1.5|round(n) is number"), "True");
    EXPECT_EQ(text("range(n, n)|list"), "[]");
    EXPECT_EQ(text("'' * n"), "");
  }
  Meter meter;
  Body body = parse(
      "{{ range(9223372036854775805, 9223372036854775807)|list }}{{ range(-9223372036854775807, 9223372036854775807, "
      "9223372036854775807)|list }}");
  EXPECT_EQ(Evaluator(meter, {}).render(body), "[9223372036854775805, 9223372036854775806][-9223372036854775807, 0]");
}

// Searching takes the same words for every pattern: each answer here is Python's.
TEST(JinjaMeter, searches_find_what_is_there) {
  Meter meter;
  auto first = [&](std::string_view text, std::string_view wanted, size_t from = 0) { return Search(meter, wanted).first(text, from); };
  auto last = [&](std::string_view text, std::string_view wanted) { return Search(meter, wanted).last(text); };
  for (std::string text : {"", "a", "aaaa", "abab", "aabaabaaab", "abcabcabd", "mississippi"}) {
    for (std::string wanted : {"", "a", "aa", "aab", "abd", "ab", "issip", "ssi", "aabaaab", "x"}) {
      EXPECT_EQ(last(text, wanted), text.rfind(wanted)) << text << " " << wanted;
      for (size_t from = 0; from <= text.size() + 1; ++from)
        EXPECT_EQ(first(text, wanted, from), text.find(wanted, from)) << text << " " << wanted;
    }
  }
}

// What is charged grows with what is done: twice the text, about twice the price.
TEST(JinjaMeter, charges_are_proportional) {
  for (const char* use :
       {"'b' in s", "s|upper|length", "s.strip('a')", "s.replace('aa', 'b')|length", "s|tojson|length", "s|list|length", "s == s ~ ''",
        "(s|list) == (s|list)", "s.split('b')|length", "s[::-1]|length", "s ~ s", "s|title|length", "s|escape|length"}) {
    auto price = [&](int n) {
      Meter meter;
      Body body = parse("{% set s = 'a' * " + std::to_string(n) + " %}{% set x = " + use + " %}");
      Evaluator(meter, {}).render(body);
      return static_cast<double>(meter.spent());
    };
    double twice = price(80000) / price(40000);
    EXPECT_GT(twice, 1.5) << use;
    EXPECT_LT(twice, 2.5) << use;
  }
}

}  // namespace
}  // namespace mr::jinja
