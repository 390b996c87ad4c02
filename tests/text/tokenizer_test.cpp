// Tokenizers against the `tokenizers` library: ids and text of a nasty corpus under each family's rules.
#include "text/tokenizer.h"

#include <chrono>
#include <random>

#include "core/error.h"
#include "fixtures.h"
#include "text/detokenizer.h"
#include "text/unicode.h"

namespace mr {
namespace {

using Ids = std::vector<int32_t>;

Tokenizer load(const std::string& family) { return Tokenizer::from_json(read_json(family + ".tokenizer.json"), nullptr); }

std::string streamed(const Tokenizer& tokenizer, const Ids& ids, bool skip_special) {
  Detokenizer detokenizer(tokenizer, skip_special);
  std::string text;
  for (int32_t id : ids) {
    std::string part = detokenizer.push(id);
    EXPECT_EQ(valid_utf8_prefix(part), part.size()) << "half a character";
    text += part;
  }
  return text + detokenizer.finish();
}

void expect_cases(const Tokenizer& tokenizer, const std::string& family) {
  auto cases = read_jsonl(family + ".cases.jsonl");
  ASSERT_GT(cases.size(), 100u);
  for (const Json& c : cases) {
    std::string text = c["text"];
    Ids ids = tokenizer.encode(text, true);
    EXPECT_EQ(ids, c["ids"].get<Ids>()) << family << ": " << text;
    EXPECT_EQ(tokenizer.encode(text, false), c["plain"].get<Ids>()) << family << ": " << text;
    EXPECT_EQ(tokenizer.encode(text, false, false), c["literal"].get<Ids>()) << family << ": " << text;
    ids = c["ids"].get<Ids>();
    EXPECT_EQ(tokenizer.decode(ids, false), c["decoded"].get<std::string>()) << family << ": " << text;
    EXPECT_EQ(tokenizer.decode(ids, true), c["skipped"].get<std::string>()) << family << ": " << text;
    EXPECT_EQ(streamed(tokenizer, ids, true), c["skipped"].get<std::string>()) << family << ": " << text;
  }
}

class Families : public testing::TestWithParam<const char*> {};

TEST_P(Families, agree_with_their_oracle) { expect_cases(load(GetParam()), GetParam()); }

INSTANTIATE_TEST_SUITE_P(Tokenizer, Families,
                         testing::Values("gpt2", "smollm2", "llama3", "qwen2", "llama2", "llama2_metaspace", "gemma", "added", "splits",
                                         "words"),
                         [](const auto& info) { return std::string(info.param); });

// The same vocabulary written as a GGUF file would hold it.
Json gguf_metadata(const Json& json, const std::string& model, const std::string& pre) {
  const Json& vocab = json["model"]["vocab"];
  size_t n = vocab.size();
  for (const Json& token : json["added_tokens"]) n = std::max<size_t>(n, token["id"].get<size_t>() + 1);
  std::vector<std::string> tokens(n);
  std::vector<int> types(n, 1);
  for (const auto& [piece, id] : vocab.items()) tokens[id.get<size_t>()] = piece;
  for (const Json& token : json["added_tokens"]) {
    tokens[token["id"].get<size_t>()] = token["content"];
    types[token["id"].get<size_t>()] = token["special"].get<bool>() ? 3 : 4;
  }
  std::vector<std::string> merges;
  for (const Json& merge : json["model"]["merges"]) merges.push_back(merge[0].get<std::string>() + " " + merge[1].get<std::string>());
  std::vector<float> scores;
  for (size_t id = 0; id < n; ++id) scores.push_back(-static_cast<float>(id));
  return {{"tokenizer.ggml.model", model},   {"tokenizer.ggml.pre", pre},       {"tokenizer.ggml.tokens", tokens},
          {"tokenizer.ggml.merges", merges}, {"tokenizer.ggml.scores", scores}, {"tokenizer.ggml.token_type", types}};
}

TEST(TokenizerGguf, split_rules_by_name) {
  for (auto [family, pre] : {std::pair{"gpt2", "gpt-2"}, {"smollm2", "smollm"}, {"qwen2", "qwen2"}}) {
    expect_cases(Tokenizer::from_gguf(gguf_metadata(read_json(std::string(family) + ".tokenizer.json"), "gpt2", pre)), family);
  }
}

TEST(TokenizerGguf, llama3_adds_bos) {
  Json metadata = gguf_metadata(read_json("llama3.tokenizer.json"), "gpt2", "llama-bpe");
  metadata["tokenizer.ggml.bos_token_id"] = 0;
  metadata["tokenizer.ggml.eos_token_id"] = 1;
  Tokenizer tokenizer = Tokenizer::from_gguf(metadata);
  expect_cases(tokenizer, "llama3");
  EXPECT_EQ(tokenizer.bos(), 0);
  EXPECT_EQ(tokenizer.piece(0), "<|begin_of_text|>");
  Ids stop(tokenizer.stop_tokens().begin(), tokenizer.stop_tokens().end());
  EXPECT_EQ(stop, (Ids{1, 4}));  // <|end_of_text|>, <|eot_id|>
  metadata["tokenizer.ggml.add_bos_token"] = false;
  EXPECT_EQ(Tokenizer::from_gguf(metadata).encode("", true), Ids{});
}

TEST(TokenizerGguf, sentencepiece_by_scores) {
  Json metadata = gguf_metadata(read_json("llama2.tokenizer.json"), "llama", "default");
  metadata["tokenizer.ggml.token_type"][0] = 2;
  expect_cases(Tokenizer::from_gguf(metadata), "llama2");
}

// A file holds runs of spaces as such, with scores that say nothing.
TEST(TokenizerGguf, gemma_merges_runs_of_spaces_first) {
  Json metadata = gguf_metadata(read_json("gemma.tokenizer.json"), "llama", "default");
  auto& tokens = metadata["tokenizer.ggml.tokens"];
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (metadata["tokenizer.ggml.token_type"][id] != 4) continue;
    metadata["tokenizer.ggml.scores"][id] = -1000;
    if (tokens[id].get<std::string>().starts_with("▁")) tokens[id] = std::string(tokens[id].get<std::string>().size() / 3, ' ');
  }
  metadata["tokenizer.ggml.add_space_prefix"] = false;
  metadata["tokenizer.ggml.bos_token_id"] = 2;
  metadata["tokenizer.ggml.eos_token_id"] = 1;
  Tokenizer tokenizer = Tokenizer::from_gguf(metadata);
  expect_cases(tokenizer, "gemma");
  EXPECT_EQ(tokenizer.bos(), 2);
}

TEST(Tokenizer, config_names_bos_eos_and_template) {
  Json config = {{"bos_token", "<|im_start|>"},
                 {"eos_token", {{"content", "<|im_end|>"}}},
                 {"chat_template", {{{"name", "tool_use"}, {"template", "T"}}, {{"name", "default"}, {"template", "D"}}}}};
  Tokenizer tokenizer = Tokenizer::from_json(read_json("smollm2.tokenizer.json"), &config);
  EXPECT_EQ(tokenizer.bos(), 1);
  EXPECT_EQ(tokenizer.eos(), 2);
  EXPECT_EQ(tokenizer.chat_template(), "D");
  EXPECT_TRUE(tokenizer.is_special(2));
  EXPECT_FALSE(tokenizer.is_special(300));
  EXPECT_EQ(tokenizer.find("<|im_end|>"), 2);
  EXPECT_EQ(tokenizer.find("no such token"), std::nullopt);
  EXPECT_EQ(tokenizer.encode("a", true), tokenizer.encode("a", false));
}

TEST(Tokenizer, llama_class_flag_overrules_post_processor) {
  Json config = {{"bos_token", "<s>"},
                 {"eos_token", "</s>"},
                 {"tokenizer_class", "LlamaTokenizer"},
                 {"add_bos_token", false},
                 {"add_eos_token", true}};
  Tokenizer tokenizer = Tokenizer::from_json(read_json("llama2.tokenizer.json"), &config);
  Ids expected = tokenizer.encode("water", false);
  expected.push_back(2);
  EXPECT_EQ(tokenizer.encode("water", true), expected);
}

TEST(Tokenizer, refuses_by_name) {
  auto expect_error = [](Json json, const std::string& text) {
    try {
      Tokenizer::from_json(json, nullptr);
      ADD_FAILURE() << "accepted: " << text;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
    }
  };
  Json json = read_json("gpt2.tokenizer.json");
  Json bad = json;
  bad["model"]["type"] = "Unigram";
  expect_error(bad, "'Unigram'");
  bad = json;
  bad["pre_tokenizer"]["type"] = "UnicodeScripts";
  expect_error(bad, "'UnicodeScripts'");
  bad = json;
  bad["normalizer"] = {{"type", "Precompiled"}};
  expect_error(bad, "'Precompiled'");
  bad = json;
  bad["model"]["merges"].push_back("zzz zzz");
  expect_error(bad, "'zzz'");
  bad = json;
  bad["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", Json::array({json["pre_tokenizer"]})}};
  bad["pre_tokenizer"]["pretokenizers"].insert(bad["pre_tokenizer"]["pretokenizers"].begin(),
                                               Json{{"type", "Split"}, {"pattern", {{"Regex", "(unclosed"}}}, {"behavior", "Isolated"}});
  expect_error(bad, "(unclosed");
  expect_error(Json(), "model");
  EXPECT_THROW(Tokenizer::from_gguf({{"tokenizer.ggml.model", "bert"}}), Error);
  EXPECT_THROW(Tokenizer::from_gguf(gguf_metadata(json, "gpt2", "no-such-rule")), Error);
}

TEST(Tokenizer, broken_utf8_counts_as_replacement_characters) {
  Tokenizer tokenizer = load("gpt2");
  EXPECT_EQ(tokenizer.encode("a\xFFz\xE4\xB8", false), tokenizer.encode("a\uFFFDz\uFFFD", false));
  EXPECT_EQ(to_valid_utf8("\xC0\xAF\xED\xA0\x80\xF4\x90\x80\x80\xE2\x82z"),
            "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFDz");
}

TEST(Tokenizer, ids_outside_the_vocabulary_are_skipped) {
  Tokenizer tokenizer = load("gpt2");
  Ids ids = {-1, 1 << 30, tokenizer.vocab_size()};
  EXPECT_EQ(tokenizer.decode(ids, false), "");
  EXPECT_EQ(tokenizer.piece(-1), "");
}

TEST(Tokenizer, random_text_round_trips) {
  std::mt19937 random(7);
  for (const char* family : {"gpt2", "smollm2", "llama3"}) {
    Tokenizer tokenizer = load(family);
    for (int i = 0; i < 300; ++i) {
      std::string bytes;
      for (size_t n = random() % 60; bytes.size() < n;) bytes += static_cast<char>(random() % (i % 2 ? 256 : 128));
      std::string text = to_valid_utf8(bytes);
      Ids ids = tokenizer.encode(bytes, false);
      EXPECT_EQ(tokenizer.decode(ids, false), text);
      EXPECT_EQ(streamed(tokenizer, ids, false), text);
    }
  }
}

TEST(Tokenizer, random_ids_decode_to_valid_text) {
  std::mt19937 random(11);
  for (const char* family : {"gpt2", "llama2", "llama2_metaspace", "splits", "words"}) {
    Tokenizer tokenizer = load(family);
    for (int i = 0; i < 300; ++i) {
      Ids ids(random() % 20);
      for (int32_t& id : ids) id = static_cast<int32_t>(random() % tokenizer.vocab_size());
      std::string text = tokenizer.decode(ids, i % 2);
      EXPECT_EQ(valid_utf8_prefix(text), text.size());
      EXPECT_EQ(streamed(tokenizer, ids, i % 2), text);
    }
  }
}

// Quadratic work on a megabyte would take minutes; the bound only has to tell that from n log n.
TEST(Tokenizer, a_megabyte_is_not_quadratic) {
  std::vector<std::string> texts = {std::string(1 << 20, 'a'), std::string(1 << 20, ' '), std::string(1 << 20, '<'),
                                    std::string(1 << 20, '1')};
  texts.emplace_back();
  while (texts.back().size() < (1 << 20)) texts.back() += "e\u0301\u0323";  // marks out of canonical order
  texts.emplace_back("e");
  while (texts.back().size() < (1 << 20)) texts.back() += "\u0301\u0323";
  for (const char* family : {"gpt2", "qwen2", "llama2"}) {
    Tokenizer tokenizer = load(family);
    for (const std::string& text : texts) {
      auto begin = std::chrono::steady_clock::now();
      Ids ids = tokenizer.encode(text, false);
      EXPECT_TRUE(std::string(family) == "qwen2" || tokenizer.decode(ids, false) == text) << family;
      EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(), 20.0) << family;
    }
  }
}

TEST(Detokenizer, continuing_text_keeps_its_first_space) {
  Tokenizer tokenizer = load("llama2");
  Ids ids = tokenizer.encode("water", false);
  Detokenizer fresh(tokenizer), continuing(tokenizer, true, true);
  std::string a, b;
  for (int32_t id : ids) {
    a += fresh.push(id);
    b += continuing.push(id);
  }
  EXPECT_EQ(a + fresh.finish(), "water");
  EXPECT_EQ(b + continuing.finish(), " water");
}

// What the text grows by when tokens follow: decode(before + after) without decode(before), by whatever decoder.
TEST(Detokenizer, continuing_text_is_what_the_whole_grows_by) {
  for (const char* family : {"gpt2", "llama2", "llama2_metaspace", "words"}) {
    Tokenizer tokenizer = load(family);
    const Ids before = tokenizer.encode("The river", false);
    for (const char* text : {"water falls", "a", "one two  three"}) {
      const Ids after = tokenizer.encode(text, false);
      Ids whole = before;
      whole.insert(whole.end(), after.begin(), after.end());
      Detokenizer continuing(tokenizer, true, true);
      std::string grown = tokenizer.decode(before, true);
      for (int32_t id : after) grown += continuing.push(id);
      EXPECT_EQ(grown + continuing.finish(), tokenizer.decode(whole, true)) << family << ": " << text;
    }
  }
}

// The `tokenizers` library's Metaspace decoder drops its mark in the first token of a text and makes it a space in all others. A text
// that goes on has no first token.
TEST(Detokenizer, after_a_metaspace_decoder_continuing_text_keeps_its_space) {
  for (const char* scheme : {"always", "first", "never"}) {
    Json json = read_json("llama2_metaspace.tokenizer.json");
    json["model"]["byte_fallback"] = false;
    json["decoder"] = {{"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", scheme}, {"split", false}};
    Tokenizer tokenizer = Tokenizer::from_json(json, nullptr);
    const Ids ids = tokenizer.encode("water falls", false);
    Detokenizer continuing(tokenizer, true, true);
    std::string text;
    for (int32_t id : ids) text += continuing.push(id);
    EXPECT_EQ(text + continuing.finish(), " water falls") << scheme;
    EXPECT_EQ(tokenizer.decode(ids, true), std::string(scheme) == "never" ? " water falls" : "water falls") << scheme;
  }
}

}  // namespace
}  // namespace mr
