// The sampling that a model's makers recommend, read from their files.
#include <gtest/gtest.h>

#include "core/error.h"
#include "engine/generation_defaults.h"

namespace mr {

static GenerationDefaults of(const char* text) { return defaults_of_config(Json::parse(text), "generation_config.json"); }

TEST(GenerationDefaults, what_is_there_replaces_and_the_rest_stays) {
  const GenerationDefaults d = of(R"({"temperature": 0.6, "top_p": 0.95, "top_k": 20, "eos_token_id": 2, "max_new_tokens": 9})");
  SamplingParams ours;
  ours.min_p = 0.25f;
  ours.max_tokens = 77;
  const SamplingParams p = d.over(ours);
  EXPECT_EQ(p.temperature, 0.6f);
  EXPECT_EQ(p.top_p, 0.95f);
  EXPECT_EQ(p.top_k, 20);
  EXPECT_EQ(p.min_p, 0.25f);
  EXPECT_EQ(p.max_tokens, 77);
  EXPECT_EQ(d.text(), "temperature 0.6, top_k 20, top_p 0.95");
  EXPECT_EQ(of("{}").text(), "");
}

TEST(GenerationDefaults, greedy_models_and_unlimited_top_k) {
  EXPECT_EQ(of(R"({"do_sample": false, "temperature": 0.7})").temperature, 0.0f);
  EXPECT_EQ(of(R"({"do_sample": true, "temperature": 0.7})").temperature, 0.7f);
  EXPECT_EQ(of(R"({"top_k": -1})").top_k, 0);
  EXPECT_FALSE(of(R"({"top_k": null})").top_k);
}

TEST(GenerationDefaults, broken_files_name_the_field) {
  for (const char* text : {R"({"temperature": "hot"})", R"({"temperature": -1})", R"({"top_p": 0})", R"({"temperature": 1e300})"}) {
    try {
      of(text);
      ADD_FAILURE() << text;
    } catch (const Error& e) {
      EXPECT_TRUE(std::string(e.what()).starts_with("generation_config.json: ")) << e.what();
    }
  }
}

TEST(GenerationDefaults, of_gguf_metadata) {
  const Json metadata =
      Json::parse(R"({"general.sampling.temp": 0.3, "general.sampling.top_k": 64, "general.sampling.penalty_repeat": 1.1})");
  EXPECT_EQ(defaults_of_gguf(metadata, "x").text(), "temperature 0.3, top_k 64, repetition_penalty 1.1");
}

}  // namespace mr
