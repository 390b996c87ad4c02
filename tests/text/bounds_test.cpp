// Tokenizers that are absurd on purpose: refused with a sentence, or bounded in time and memory.
#include <gtest/gtest.h>

#include <chrono>
#include <new>

#include "core/error.h"
#include "text/regex.h"
#include "text/tokenizer.h"

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

TEST(TokenizerBounds, TextThatGrowsAsUnicodeSaysStillPasses) {
  Json json = plain();
  json["normalizer"] = {{"type", "NFKC"}};
  std::string ligatures;  // one of three bytes becomes 33
  for (int i = 0; i < 20'000; i++) ligatures += "\xEF\xB7\xBA";
  EXPECT_EQ(sentence_of(json, ligatures), "");
}

TEST(TokenizerBounds, PatternsThatBacktrackWithoutEndAreStopped) {
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

// One piece that merges all the way, words, added tokens, letters that a pattern cuts apart: work of each of the tokenizer's parts.
TEST(TokenizerBounds, StopsWhenToldAndHoldsWhatItMay) {
  Json split = plain();
  split["pre_tokenizer"] = {{"type", "Split"}, {"pattern", {{"Regex", "a|b"}}}, {"behavior", "Isolated"}, {"invert", false}};
  std::string pairs, tokens;
  for (int i = 0; i < 1 << 20; i++) pairs += "ab", tokens += "<s>";
  for (const auto& [json, text] : {std::pair(plain(), pairs), {split, pairs}, {plain(), tokens}}) {
    const Tokenizer tokenizer = load(json);
    size_t held = 0;
    Allowance counts{.grant = [&](size_t n) {
      held += n;
      return true;
    }};
    EXPECT_GT(tokenizer.encode(text, false, true, counts).size(), size_t(1) << 19);
    EXPECT_GT(held, text.size());
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
