// The default model, SmolLM2-135M-Instruct in Q4_1, against transformers with the same weights dequantized to f32, and the
// faithfulness of the CPU kernels: how far the distributions of a page of text are from the f32 reference.
#include <cmath>

#include "core/config.h"
#include "engine/chat.h"
#include "engine/harness.h"

namespace mr {
namespace {

class DefaultModel : public testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(default_model())) GTEST_SKIP() << "the default model is not at " << default_model();
  }
  Json expected = expected_of("smollm2");
};

TEST_F(DefaultModel, GreedyAnswersEqualTheOracle) {
  auto engine = Engine::create(default_model(), {});
  ChatFormat format(*engine->tokenizer());
  for (const Json& e : expected["prompts"]) {
    auto prompt = e["prompt"].get<std::vector<int32_t>>();
    std::string text = e["text"];
    if (e.contains("messages")) {
      EXPECT_EQ(format.encode(OrderedJson::parse(e["messages"].dump())), prompt) << text;
    } else {
      EXPECT_EQ(engine->tokenizer()->encode(text, true), prompt) << text;
    }
    Answer answer = run_one(*engine, greedy(prompt, expected["max_new"]));
    std::vector<int32_t> want = e["greedy"];
    EXPECT_EQ(answer.tokens, want) << text;
  }
}

std::vector<float> page_logits(const std::string& device, std::optional<Isa> isa, const std::vector<int32_t>& tokens,
                               std::vector<float>& scores) {
  auto engine = Engine::create(default_model(), {.device = device, .isa = isa});
  std::vector<float> logits;
  Request request = greedy(tokens, 1);
  request.score_prompt = true;
  request.on_logits = [&](int, std::span<const float> row) { logits.insert(logits.end(), row.begin(), row.end()); };
  for (const Sampled& s : run_one(*engine, request).prompt) scores.push_back(s.logprob);
  return logits;
}

double log_sum_exp(const float* row, size_t n) {
  double largest = *std::max_element(row, row + n), sum = 0;
  for (size_t i = 0; i < n; i++) sum += std::exp(row[i] - largest);
  return largest + std::log(sum);
}

double mean_divergence(const std::vector<float>& p, const std::vector<float>& q, size_t vocab) {
  double total = 0;
  for (size_t begin = 0; begin < p.size(); begin += vocab) {
    double zp = log_sum_exp(&p[begin], vocab), zq = log_sum_exp(&q[begin], vocab);
    for (size_t i = begin; i < begin + vocab; i++) total += std::exp(p[i] - zp) * ((p[i] - zp) - (q[i] - zq));
  }
  return total / double(p.size() / vocab);
}

TEST_F(DefaultModel, IsFaithfulToF32OverAPage) {
  const Json& page = expected["page"];
  auto tokens = page["tokens"].get<std::vector<int32_t>>();
  tokens.resize(160);  // the reference is slow; the whole page is compared with the oracle below
  std::vector<float> reference_scores, scores;
  std::vector<float> reference = page_logits("ref", {}, tokens, reference_scores), logits = page_logits("cpu", {}, tokens, scores);
  double divergence = mean_divergence(reference, logits, 49152);
  RecordProperty("mean_kl", std::to_string(divergence));
  EXPECT_LT(divergence, 1e-4);
  EXPECT_GT(divergence, 0);
}

TEST_F(DefaultModel, ScoresAPageAsTheOracleDoes) {
  const Json& page = expected["page"];
  std::vector<float> scores;
  page_logits("cpu", {}, page["tokens"], scores);
  double worst = 0, sum = 0;
  for (size_t i = 0; i + 1 < scores.size(); i++) {
    worst = std::max(worst, std::abs(scores[i + 1] - page["logprobs"][i].get<double>()));
    sum -= scores[i + 1];
  }
  EXPECT_LT(worst, 0.02);
  EXPECT_NEAR(sum / double(scores.size() - 1), page["mean_nll"], 1e-3);
}

}  // namespace
}  // namespace mr
