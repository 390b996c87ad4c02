// The engine on the GPU. Every fixture's logits against transformers, with a bound derived from bf16; what is generated step by step
// (graphs, tokens that stay on the device, launches ahead) against one pass over the whole answer. Skipped without a GPU.
#include <cmath>

#include "backend/cuda/cuda_backend.h"
#include "engine/harness.h"

namespace mr {
namespace {

class Cuda : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (!cuda_available()) GTEST_SKIP() << "no GPU";
  }
};
INSTANTIATE_TEST_SUITE_P(All, Cuda, testing::ValuesIn(fixture_names()), [](const auto& info) { return info.param; });

// Rounding to bf16 changes a value by at most 2^-9 of itself. A layer rounds about 8 times on the way of a value (norm, projection,
// rotation, mixing, twice each), and its weights once; independent errors add up by their squares. Twice that, for what one layer's
// error does to the next one's softmax.
double bf16_bound(const Engine& engine) { return 2 * 0x1p-9 * std::sqrt(8.0 * double(engine.model().spec().layers.size()) + 4); }

TEST_P(Cuda, LogitsAgreeWithTheOracleWithinBf16) {
  const std::string& name = GetParam();
  Json expected = expected_of(name);
  auto tokens = expected["prompt"].get<std::vector<int32_t>>();
  if (expected["logits"].get<std::string>().starts_with("one forward"))
    for (int32_t t : expected["greedy"]) tokens.push_back(t);
  const size_t vocab = expected["vocab"];
  std::ifstream file(std::filesystem::path(MR_FIXTURES) / "models" / name / "logits.f32", std::ios::binary);
  std::vector<float> want(tokens.size() * vocab), got;
  ASSERT_TRUE(file.read(reinterpret_cast<char*>(want.data()), std::streamsize(want.size() * 4)));
  for (int rows : {512, 7}) {
    auto engine = open(name, {.device = "cuda", .max_batch_tokens = rows, .page_tokens = 16});
    got.clear();
    Request request = greedy(tokens, 1);
    request.score_prompt = true;
    request.on_logits = [&](int, std::span<const float> row) { got.insert(got.end(), row.begin(), row.end()); };
    Answer answer = run_one(*engine, request);
    ASSERT_EQ(got.size(), want.size()) << answer.error;
    double error = 0, spread = 0;
    for (size_t r = 0; r < tokens.size(); r++) {
      double mean = 0;
      for (size_t i = 0; i < vocab; i++) mean += want[r * vocab + i] / double(vocab);
      for (size_t i = r * vocab; i < (r + 1) * vocab; i++) {
        error += std::pow(double(got[i] - want[i]), 2);
        spread += std::pow(want[i] - mean, 2);
      }
    }
    const double relative = std::sqrt(error / spread);
    EXPECT_LT(relative, bf16_bound(*engine)) << rows << " rows a step";
    RecordProperty(fmt::format("error_{}", rows), fmt::format("{:.4f} of {:.4f}", relative, bf16_bound(*engine)));
  }
}

// Several answers at once, long enough to cross pages; then each scored in one pass.
TEST_P(Cuda, WhatIsGeneratedIsWhatOnePassScores) {
  if (GetParam().find("rope_dynamic") != std::string::npos || GetParam().find("rope_longrope") != std::string::npos)
    GTEST_SKIP() << "another prompt length is another rope";
  auto engine = open(GetParam(), {.device = "cuda", .max_seqs = 8, .page_tokens = 16});
  std::mt19937 rng(3);
  const int vocab = engine->model().spec().vocab;
  std::vector<Request> requests;
  for (int i = 0; i < 5; i++) {
    std::vector<int32_t> prompt(size_t(5 + 9 * i));
    for (int32_t& t : prompt) t = int32_t(rng() % unsigned(vocab));
    requests.push_back(greedy(prompt, 20 + 3 * i));
    requests.back().sampling.ignore_eos = true;
    if (i == 3) requests.back().sampling.temperature = 0.8f, requests.back().sampling.seed = 5;
  }
  Answers answers = run_all(*engine, requests);
  double worst = 0;
  for (size_t i = 0; i < requests.size(); i++) {
    const Answer& a = answers[i][0];
    ASSERT_EQ(a.finish, Finish::length) << a.error;
    Request score = greedy(requests[i].prompt, 0);
    score.prompt.insert(score.prompt.end(), a.tokens.begin(), a.tokens.end());
    score.score_prompt = true;
    Answer scored = run_one(*engine, score);
    ASSERT_EQ(scored.prompt.size(), score.prompt.size()) << scored.error;
    for (size_t t = 0; t < a.tokens.size(); t++) {
      EXPECT_EQ(scored.prompt[requests[i].prompt.size() + t].token, a.tokens[t]);
      worst = std::max(worst, std::abs(double(scored.prompt[requests[i].prompt.size() + t].logprob) - a.logprobs[t]));
    }
  }
  // Both sides carry the error above; a log-probability is a difference of two logits, and this is the worst of a hundred.
  double spread = 0;
  Json expected = expected_of(GetParam());
  spread = expected["max_abs_logit"];
  EXPECT_LT(worst, 4 * bf16_bound(*engine) * spread);
  for (const StateStats::Group& g : engine->state_stats().group) EXPECT_EQ(g.n_used, 0);
}

TEST(CudaEngine, MadeUpWeightsAreThoseOfTheCpu) {
  if (!cuda_available()) GTEST_SKIP() << "no GPU";
  Request request = greedy({1, 2, 3, 4, 5, 6, 7, 8, 9}, 1);
  request.score_prompt = true;
  std::vector<std::vector<float>> logits;
  double bound = 0;
  for (const char* device : {"cpu", "cuda"}) {
    auto engine = open("llama_gqa", {.device = device, .random_weights = 7});
    auto& got = logits.emplace_back();
    request.on_logits = [&](int, std::span<const float> row) { got.insert(got.end(), row.begin(), row.end()); };
    run_one(*engine, request);
    bound = bf16_bound(*engine);
  }
  double error = 0, size = 0;
  ASSERT_EQ(logits[0].size(), logits[1].size());
  for (size_t i = 0; i < logits[0].size(); i++) error += std::pow(logits[0][i] - logits[1][i], 2), size += std::pow(logits[0][i], 2);
  EXPECT_LT(std::sqrt(error / size), bound);
}

TEST(CudaEngine, WithoutAGpuItIsASentence) {
  if (cuda_available()) GTEST_SKIP() << "there is a GPU";
  EXPECT_THROW(open("llama_gqa", {.device = "cuda"}), Error);
}

}  // namespace
}  // namespace mr
