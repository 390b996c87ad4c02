// Tokenizers there and back: what is rebuilt gives the ids of the `tokenizers` library for the original (tests/fixtures/text).
#include "convert/tokenizer.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "core/error.h"
#include "io/gguf.h"
#include "text/tokenizer.h"

namespace mr {
namespace {

namespace fs = std::filesystem;

Json fixture_json(const std::string& name) { return Json::parse(std::ifstream(fs::path(MR_FIXTURES) / "text" / name)); }

// Through a file, as readers see it.
Json read_back(const GgufMetadata& metadata) {
  const fs::path file = fs::temp_directory_path() / fmt::format("millrace_tokenizer_{}.gguf", ::getpid());
  fs::remove(file);
  write_gguf(file, metadata, {}, 0, {});
  Json json = GgufFile(MappedFile(file)).metadata;
  fs::remove(file);
  return json;
}

void expect_cases(const Tokenizer& tokenizer, const std::string& name) {
  std::ifstream cases(fs::path(MR_FIXTURES) / "text" / (name + ".cases.jsonl"));
  int n = 0;
  for (std::string line; std::getline(cases, line); n++) {
    const Json one = Json::parse(line);
    const std::string text = one["text"];
    EXPECT_EQ(tokenizer.encode(text, false), one["plain"].get<std::vector<int32_t>>()) << name << ": " << text;
    EXPECT_EQ(tokenizer.encode(text, true), one["ids"].get<std::vector<int32_t>>()) << name << ": " << text;
    EXPECT_EQ(tokenizer.decode(one["ids"].get<std::vector<int32_t>>(), true), one["skipped"].get<std::string>()) << name << ": " << text;
  }
  EXPECT_GT(n, 50);
}

class Tokenizers : public testing::TestWithParam<const char*> {};

TEST_P(Tokenizers, ThereAndBack) {
  const std::string name = GetParam();
  const Json json = fixture_json(name + ".tokenizer.json");
  const int vocab = Tokenizer::from_json(json, nullptr).vocab_size() + 7;  // a model may have more rows
  const Json metadata = read_back(tokenizer_to_gguf(json, Json::object(), vocab));
  EXPECT_EQ(metadata["tokenizer.ggml.tokens"].size(), size_t(vocab));
  expect_cases(Tokenizer::from_gguf(metadata), name);
  const TokenizerFiles rebuilt = tokenizer_from_gguf(metadata);
  const Json again = Json::parse(rebuilt.tokenizer.dump()), config = Json::parse(rebuilt.config.dump());
  expect_cases(Tokenizer::from_json(again, &config), name);
}
INSTANTIATE_TEST_SUITE_P(All, Tokenizers, testing::Values("gpt2", "smollm2", "llama3", "qwen2", "llama2", "gemma"),
                         [](const auto& info) { return std::string(info.param); });

TEST(Tokenizers, ThatGgufHasNoWordsForAreRefused) {
  for (const char* name : {"added", "splits", "words"})
    EXPECT_THROW(tokenizer_to_gguf(fixture_json(std::string(name) + ".tokenizer.json"), Json::object(), 2000), Error) << name;
}

TEST(Tokenizers, KeepTheChatTemplate) {
  const Json config = {{"chat_template", "{{ messages }}"}, {"eos_token", "<|im_end|>"}, {"bos_token", "<|im_start|>"}};
  const Json metadata = read_back(tokenizer_to_gguf(fixture_json("smollm2.tokenizer.json"), config, 700));
  EXPECT_EQ(metadata["tokenizer.chat_template"], "{{ messages }}");
  EXPECT_EQ(metadata["tokenizer.ggml.pre"], "smollm");
  const TokenizerFiles rebuilt = tokenizer_from_gguf(metadata);
  EXPECT_EQ(rebuilt.config["chat_template"], "{{ messages }}");
  EXPECT_EQ(rebuilt.config["eos_token"], "<|im_end|>");
}

}  // namespace
}  // namespace mr
