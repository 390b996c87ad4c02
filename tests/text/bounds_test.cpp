// Tokenizers that are absurd on purpose: refused with a sentence, or bounded in time and memory.
#include <gtest/gtest.h>
#include <pthread.h>
#include <utf8proc.h>

#include <atomic>
#include <chrono>
#include <future>
#include <new>
#include <random>
#include <thread>

#include "core/error.h"
#include "text/regex.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

namespace mr {
namespace {

Json plain() {
  return {{"model", {{"type", "BPE"}, {"vocab", {{"a", 0}, {"b", 1}, {"ab", 2}}}, {"merges", {"a b"}}}},
          {"added_tokens", Json::array({{{"id", 3}, {"content", "<s>"}, {"special", true}}})}};
}

Tokenizer load(const Json& json) { return Tokenizer::from_json(json, nullptr); }

// The sentence that loading and using it throws; empty: none.
std::string sentence_of(const Json& json, std::string_view text = "ab ab") {
  try {
    Tokenizer tokenizer = load(json);
    tokenizer.decode(tokenizer.encode(text, true), false);
    return "";
  } catch (const Error& e) {
    EXPECT_LT(std::string_view(e.what()).size(), 1500u);
    EXPECT_EQ(std::string_view(e.what()).find('\n'), std::string_view::npos);
    return e.what();
  }
}

void expect_refused(const Json& json, const char* why, std::string_view text = "ab ab") {
  auto begin = std::chrono::steady_clock::now();
  std::string said = sentence_of(json, text);
  EXPECT_NE(said.find(why), std::string::npos) << "said: " << said;
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(), 20);
}

Json nested(Json step, const char* list, int depth) {
  for (int i = 0; i < depth; i++) step = {{"type", "Sequence"}, {list, Json::array({std::move(step)})}};
  return step;
}

TEST(TokenizerBounds, PlainOnesPass) {
  EXPECT_EQ(sentence_of(plain()), "");
  Json json = plain();
  json["normalizer"] = nested({{"type", "NFC"}}, "normalizers", 3);
  EXPECT_EQ(sentence_of(json), "");
}

TEST(TokenizerBounds, SequencesNestOnlySoDeep) {
  for (int depth : {17, 60, 2000}) {
    Json json = plain();
    json["normalizer"] = nested({{"type", "NFC"}}, "normalizers", depth);
    expect_refused(json, "nests more than");
    json = plain();
    json["pre_tokenizer"] = nested({{"type", "Whitespace"}}, "pretokenizers", depth);
    expect_refused(json, "nests more than");
    json = plain();
    json["post_processor"] = nested({{"type", "ByteLevel"}}, "processors", depth);
    expect_refused(json, "nests more than");
    json = plain();
    json["decoder"] = nested({{"type", "Fuse"}}, "decoders", depth);
    expect_refused(json, "nests more than");
  }
}

TEST(TokenizerBounds, RulesThatMultiplyTheTextAreStopped) {
  Json doubling = Json::array();
  for (int i = 0; i < 60; i++) doubling.push_back({{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aa"}});
  Json json = plain();
  json["normalizer"] = {{"type", "Sequence"}, {"normalizers", doubling}};
  expect_refused(json, "the tokenizer's rules make");

  for (Json& step : doubling) step["pattern"] = {{"Regex", "a"}};
  json["normalizer"] = {{"type", "Sequence"}, {"normalizers", doubling}};
  expect_refused(json, "the tokenizer's rules make");

  json["normalizer"] = {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", std::string(1 << 20, 'x')}};
  expect_refused(json, "the tokenizer's rules make", std::string(100'000, 'a'));

  json["normalizer"] = {{"type", "Prepend"}, {"prepend", std::string(1 << 20, 'x')}};
  expect_refused(json, "the tokenizer's rules make");

  json = plain();
  json["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", std::string(10'000, 'x')}};
  expect_refused(json, "the tokenizer's rules make", std::string(1000, ' '));

  json = plain();
  json["normalizer"] = {{"type", "Sequence"}, {"normalizers", Json(1000, Json{{"type", "NFC"}})}};
  expect_refused(json, "normalizers: at most");
}

TEST(TokenizerBounds, AddedTokensThatGrowAreStopped) {
  Json json = plain();
  json["normalizer"] = {{"type", "Prepend"}, {"prepend", std::string(60'000, 'x')}};
  for (int i = 0; i < 50'000; i++)
    json["added_tokens"].push_back({{"id", 4 + i}, {"content", fmt::format("t{}", i)}, {"normalized", true}});
  expect_refused(json, "the tokenizer's normalizer makes");
}

TEST(TokenizerBounds, TextThatGrowsAsUnicodeSaysStillPasses) {
  Json json = plain();
  json["normalizer"] = {{"type", "NFKC"}};
  std::string ligatures;  // one of three bytes becomes 33
  for (int i = 0; i < 20'000; i++) ligatures += "\xEF\xB7\xBA";
  EXPECT_EQ(sentence_of(json, ligatures), "");
}

TEST(TokenizerBounds, PatternsThatBacktrackWithoutEndAreStopped) {
  for (const char* pattern : {"(a(?1)?a?)*[bc]", "(?R)?a", "(a)(?-1)", "(?<n>a)(?&n)", "(?P<n>a)(?P>n)", "(a)\\g<1>", "(a)\\g'1'"}) {
    Json json = plain();
    json["pre_tokenizer"] = {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}};
    expect_refused(json, "calls a group");
  }
  for (const char* pattern : {"(a+)+c", "(a|aa)+c", "(a*)*c", "(?:a?){40}a{40}c", "(.*)*(.*)*x$", "((a{1,50}){1,50}){1,50}c"}) {
    Json json = plain();
    json["pre_tokenizer"] = {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}};
    std::string said = sentence_of(json, std::string(3000, 'a') + "dc xd");  // what the pattern needs at its end is there, but not here
    EXPECT_NE(said, "") << pattern;
  }
  // Quadratic only, but a long text of it would take minutes.
  Json json = plain();
  json["pre_tokenizer"] = {{"type", "Split"}, {"pattern", {{"Regex", "a*(?=c)"}}}, {"behavior", "Isolated"}};
  expect_refused(json, "split pattern", std::string(200'000, 'a') + "dc");
}

TEST(TokenizerBounds, ATemplateThatNamesItsTokensAgainAndAgain) {
  Json json = plain(), name{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}};
  json["post_processor"] = {{"type", "TemplateProcessing"},
                            {"single", std::vector<Json>(20'000, name)},
                            {"special_tokens", {{"<s>", {{"id", "<s>"}, {"ids", std::vector<int>(20'000, 0)}}}}}};
  expect_refused(json, "adds more than 1024 tokens");
}

TEST(TokenizerBounds, LongRunsStillPassTheUsualPattern) {
  Json json = plain();
  json["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", false}};
  json["decoder"] = {{"type", "ByteLevel"}};
  for (const std::string& text : {std::string(300'000, ' '), std::string(300'000, 'a'), std::string(300'000, '\n') + "x"})
    EXPECT_EQ(sentence_of(json, text), "");
}

TEST(TokenizerBounds, PatternsThatAreNone) {
  for (const std::string& pattern : {std::string(1000, '('), std::string(100'000, 'a'), std::string("[a"), std::string("a{99999}"),
                                     std::string("\\C"), std::string("\\p{Nothing}")}) {
    Json json = plain();
    json["pre_tokenizer"] = {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}};
    EXPECT_NE(sentence_of(json).find("split pattern"), std::string::npos) << pattern.substr(0, 40);
  }
}

TEST(TokenizerBounds, TokensHaveASize) {
  Json json = plain();
  json["added_tokens"][0]["content"] = std::string(2 << 20, 'a');
  expect_refused(json, "the added token", std::string(2 << 20, 'a'));
  json = plain();
  json["model"]["vocab"][std::string(2 << 20, 'a')] = 4;
  expect_refused(json, "at most");
}

TEST(TokenizerBounds, IdsAreInRange) {
  for (const Json& id : {Json(1 << 23), Json(-1), Json(int64_t(1) << 40), Json(~uint64_t(0)), Json(1e300), Json(2.5), Json("3"), Json()}) {
    Json json = plain();
    json["model"]["vocab"]["c"] = id;
    EXPECT_NE(sentence_of(json), "") << id;
    json = plain();
    json["added_tokens"][0]["id"] = id;
    EXPECT_NE(sentence_of(json), "") << id;
  }
  for (const Json& id : {Json(100), Json(int64_t(1) << 40), Json(1e300), Json("3")}) {
    Json json = plain();
    json["post_processor"] = {{"type", "TemplateProcessing"},
                              {"single", Json::array({{{"SpecialToken", {{"id", "<s>"}}}}})},
                              {"special_tokens", {{"<s>", {{"ids", Json::array({id})}}}}}};
    EXPECT_NE(sentence_of(json), "") << id;
    json["post_processor"] = {{"type", "BertProcessing"}, {"cls", {"<s>", id}}, {"sep", {"<s>", 3}}};
    EXPECT_NE(sentence_of(json), "") << id;
  }
}

TEST(TokenizerBounds, StrippingHasACount) {
  for (const Json& start : {Json(int64_t(1) << 40), Json(1e300), Json(-1), Json(2'000'000'000)}) {
    Json json = plain();
    json["decoder"] = {{"type", "Sequence"},
                       {"decoders", Json::array({{{"type", "Fuse"}}, {{"type", "Strip"}, {"content", " "}, {"start", start}}})}};
    expect_refused(json, "'start'");
  }
  Json json = plain();
  json["decoder"] = {{"type", "Sequence"},
                     {"decoders", Json::array({{{"type", "Fuse"}}, {{"type", "Strip"}, {"content", ""}, {"start", 1000}}})}};
  EXPECT_EQ(sentence_of(json), "");
}

TEST(TokenizerBounds, DecodersThatMultiplyTokensAreStopped) {
  Json doubling = Json::array();
  for (int i = 0; i < 40; i++) doubling.push_back({{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aa"}});
  Json json = plain();
  json["decoder"] = {{"type", "Sequence"}, {"decoders", doubling}};
  expect_refused(json, "decoders make");
  json["decoder"] = {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", std::string(1 << 20, 'x')}};
  expect_refused(json, "a decoder replaces");
}

// Tokens that are spaces and strip spaces: every match once looked at all the spaces around it.
TEST(TokenizerBounds, StrippedSpacesAreSeenOnce) {
  Json json = plain();
  json["added_tokens"] = Json::array({{{"id", 3}, {"content", " "}, {"lstrip", true}, {"rstrip", true}, {"normalized", false}}});
  auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(load(json).encode(std::string(1 << 20, ' '), false).size(), size_t(1) << 20);
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(), 20);
}

Json with_newline_token() {
  Json json = plain();
  json["added_tokens"].push_back({{"id", 4}, {"content", "\n"}, {"normalized", false}});
  return json;
}

// One piece that merges all the way, words, added tokens, letters that a pattern cuts apart: work of each of the tokenizer's parts.
TEST(TokenizerBounds, StopsWhenToldAndHoldsWhatItMay) {
  Json split = plain();
  split["pre_tokenizer"] = {{"type", "Split"}, {"pattern", {{"Regex", "a|b"}}}, {"behavior", "Isolated"}, {"invert", false}};
  std::string pairs, tokens, lines;
  for (int i = 0; i < 1 << 20; i++) {
    pairs += "ab";
    tokens += "<s>";
    lines += "a\n";
  }
  constexpr size_t segment = 24;  // bytes of one, of text or of an added token
  struct Case {
    Json json;
    const std::string& text;
    size_t least;  // bytes that are known to be held
  };
  for (const auto& [json, text, least] :
       {Case{plain(), pairs, 20 * pairs.size()}, Case{split, pairs, 16 * pairs.size()}, Case{plain(), tokens, segment * tokens.size() / 3},
        Case{with_newline_token(), lines, segment * lines.size()}}) {
    const Tokenizer tokenizer = load(json);
    size_t held = 0;
    Allowance counts{.grant = [&](size_t n) {
      held += n;
      return true;
    }};
    EXPECT_GT(tokenizer.encode(text, false, true, counts).size(), size_t(1) << 19);
    EXPECT_GE(held, least);
    EXPECT_LT(held, 200 * text.size());
    size_t left = held / 2;
    Allowance little{.grant = [&](size_t n) {
      if (n > left) return false;
      left -= n;
      return true;
    }};
    EXPECT_THROW(tokenizer.encode(text, false, true, little), std::bad_alloc);

    const auto begin = std::chrono::steady_clock::now();
    EXPECT_THROW(tokenizer.encode(text, false, true, {.deadline = begin}), Stopped);
    std::stop_source stop;
    stop.request_stop();
    EXPECT_THROW(tokenizer.encode(text, false, true, {.stop = stop.get_token()}), Stopped);
    EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(), 5);
  }
}

// Room for merging is used by one segment after the other.
TEST(TokenizerBounds, ManySegmentsHoldWhatTheLongestTakes) {
  std::string text;
  for (int i = 0; i < 1 << 20; i++) text += i % 4096 == 0 ? "\n" : "ab";
  size_t held = 0;
  Allowance counts{.grant = [&](size_t n) {
    held += n;
    return true;
  }};
  load(with_newline_token()).encode(text, false, true, counts);
  EXPECT_LT(held, 10 * text.size());
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr double slowdown = 5;
#else
constexpr double slowdown = 1;
#endif

// Processor time from the moment of a stop to the end of the work, whatever else the machine does.
double seconds_to_stop(const Tokenizer& tokenizer, const std::string& text, double stop_after) {
  std::stop_source stop;
  std::atomic<bool> over = false, seen = false;
  double at_stop = 0, at_end = 0;
  auto cpu_seconds = [](clockid_t clock) {
    timespec t;
    clock_gettime(clock, &t);
    return double(t.tv_sec) + double(t.tv_nsec) * 1e-9;
  };
  clockid_t clock;
  std::promise<void> begun;
  std::thread worker([&] {
    pthread_getcpuclockid(pthread_self(), &clock);
    begun.set_value();
    try {
      tokenizer.encode(text, false, true, {.stop = stop.get_token()});
    } catch (const Stopped&) {
    }
    at_end = cpu_seconds(CLOCK_THREAD_CPUTIME_ID);
    over = true;
    while (!seen) std::this_thread::yield();  // its clock is read until then
  });
  begun.get_future().wait();
  while (!over && cpu_seconds(clock) < stop_after) std::this_thread::sleep_for(std::chrono::microseconds(500));
  stop.request_stop();
  at_stop = cpu_seconds(clock);  // looked at late, it only makes the time shorter
  seen = true;
  worker.join();
  return at_end - at_stop;
}

// A text in one piece, and normalizers that see all of it at once.
TEST(TokenizerBounds, StopsInTheMiddleOfAPiece) {
  std::string pairs, accents, ligatures, marks;
  for (int i = 0; i < 1 << 21; i++) pairs += "ab";
  for (int i = 0; i < 1 << 20; i++) {
    accents += "e\xCC\x81";
    marks += i % 2 ? "\xCC\x81" : "\xCC\xA7";
  }
  for (int i = 0; i < 1 << 18; i++) ligatures += "\xEF\xB7\xBA";
  auto normalized = [](Json step) {
    Json json = plain();
    json["normalizer"] = std::move(step);
    return json;
  };
  const Json replacing{{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aa"}};
  const Json slow_search{{"type", "Replace"}, {"pattern", {{"String", std::string(1000, 'e') + "x"}}}, {"content", ""}};
  for (const auto& [json, text] : {std::pair(plain(), pairs),
                                   {normalized({{"type", "NFC"}}), accents},
                                   {normalized({{"type", "NFC"}}), marks},
                                   {normalized({{"type", "NFKC"}}), ligatures},
                                   {normalized({{"type", "Lowercase"}}), pairs},
                                   {normalized(replacing), pairs},
                                   {normalized(slow_search), std::string(1 << 22, 'e')}}) {
    const Tokenizer tokenizer = load(json);
    for (double after : {0.003, 0.02, 0.06, 0.15, 0.3})
      EXPECT_LT(seconds_to_stop(tokenizer, text, after), 0.12 * slowdown) << json["normalizer"] << after;
  }
}

// Normal forms are made part by part: as utf8proc makes them of the whole.
TEST(TokenizerBounds, NormalFormsOfLongTextsAreThoseOfTheWhole) {
  const char* const parts[] = {"a",
                               "e",
                               "\xCC\x81",
                               "\xCC\xA7",
                               "\xCC\xA3",
                               "\xE1\x84\x92",
                               "\xE1\x85\xA1",
                               "\xE1\x86\xAB",
                               "\xED\x95\x98",
                               "\xED\x95\x9C",
                               "\xE3\x81\x8B",
                               "\xE3\x82\x99",
                               "\xE0\xA7\x87",
                               "\xE0\xA6\xBE",
                               "\xC3\xA9",
                               "\xEF\xB7\xBA",
                               "\xEF\xBE\x84",
                               "\xEF\xBE\x9E",
                               "\xEF\xBE\xA1",
                               "\xEF\xBF\x82",
                               "\xE2\x84\xAB",
                               "\xE4\xB8\xAD",
                               "\xF0\x9D\x85\x9E",
                               "\xEF\xA4\x80",
                               "1",
                               " "};
  std::mt19937 chance(7);
  for (int round = 0; round < 20; round++) {
    std::string text;
    for (int i = 0; i < 20'000; i++) text += parts[chance() % std::size(parts)];
    const std::pair<NormalForm, utf8proc_uint8_t* (*)(const utf8proc_uint8_t*)> forms[] = {{NormalForm::nfc, utf8proc_NFC},
                                                                                           {NormalForm::nfd, utf8proc_NFD},
                                                                                           {NormalForm::nfkc, utf8proc_NFKC},
                                                                                           {NormalForm::nfkd, utf8proc_NFKD}};
    for (const auto& [form, reference] : forms) {
      const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> expected(
          reference(reinterpret_cast<const utf8proc_uint8_t*>(text.c_str())), &std::free);
      ASSERT_TRUE(normalize(text, form) == reinterpret_cast<const char*>(expected.get())) << int(form);
    }
  }
}

TEST(TokenizerBounds, GgufListsHoldWhatTheyShould) {
  Json good{
      {"tokenizer.ggml.model", "llama"}, {"tokenizer.ggml.tokens", {"<unk>", "a", "b"}}, {"tokenizer.ggml.scores", {0.0, -1.0, -2.0}}};
  EXPECT_NO_THROW(Tokenizer::from_gguf(good).encode("ab", true));
  auto with = [&](const char* key, Json value) {
    Json json = good;
    json[key] = std::move(value);
    return json;
  };
  double nan = std::numeric_limits<double>::quiet_NaN();
  for (const Json& bad : {with("tokenizer.ggml.scores", {0.0, nan, 1.0}), with("tokenizer.ggml.scores", {0.0, 1e300, 1.0}),
                          with("tokenizer.ggml.scores", {0.0}), with("tokenizer.ggml.tokens", {"a", 1, "b"}),
                          with("tokenizer.ggml.tokens", "a"), with("tokenizer.ggml.model", 7),
                          with("tokenizer.ggml.tokens", {"a", std::string(1 << 20, 'x'), "b"}), with("tokenizer.ggml.token_type", {1})})
    EXPECT_THROW(Tokenizer::from_gguf(bad).encode("ab", true), Error) << bad.dump().substr(0, 200);
}

}  // namespace
}  // namespace mr
