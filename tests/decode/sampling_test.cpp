#include "decode/sampling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>

#include "core/error.h"

namespace mr {
namespace {

std::string complaint(auto change) {
  SamplingParams params;
  change(params);
  try {
    params.validate(100);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(SamplingParams, DefaultsAndLimitsAreValid) {
  EXPECT_EQ(complaint([](SamplingParams&) {}), "");
  EXPECT_EQ(complaint([](SamplingParams& p) { p = {.temperature = 0, .top_p = 1, .min_p = 1, .max_tokens = 0, .logprobs = 100}; }), "");
  EXPECT_EQ(complaint([](SamplingParams& p) { p = {.frequency_penalty = -2, .presence_penalty = 2, .logit_bias = {{99, -100}}}; }), "");
}

TEST(SamplingParams, EveryFieldIsNamedWithItsRange) {
  EXPECT_EQ(complaint([](SamplingParams& p) { p.temperature = -0.5f; }), "temperature must be between 0 and 100, not -0.5");
  EXPECT_EQ(complaint([](SamplingParams& p) { p.temperature = NAN; }), "temperature must be between 0 and 100, not nan");
  EXPECT_EQ(complaint([](SamplingParams& p) { p.top_k = -1; }), "top_k must be 0 (all tokens) or more, not -1");
  EXPECT_EQ(complaint([](SamplingParams& p) { p.top_p = 0; }), "top_p must be above 0 and at most 1, not 0");
  EXPECT_EQ(complaint([](SamplingParams& p) { p.min_p = 1.5f; }), "min_p must be between 0 and 1, not 1.5");
  EXPECT_EQ(complaint([](SamplingParams& p) { p.repetition_penalty = 0; }), "repetition_penalty must be above 0 and at most 100, not 0");
  EXPECT_EQ(complaint([](SamplingParams& p) { p.frequency_penalty = 3; }), "frequency_penalty must be between -2 and 2, not 3");
  EXPECT_EQ(complaint([](SamplingParams& p) { p.presence_penalty = -3; }), "presence_penalty must be between -2 and 2, not -3");
  EXPECT_EQ(complaint([](SamplingParams& p) { p.logit_bias[100] = 1; }), "logit_bias names token 100, but the vocabulary has 100 tokens");
  EXPECT_EQ(complaint([](SamplingParams& p) { p.logit_bias[5] = 101; }), "logit_bias of token 5 must be between -100 and 100, not 101");
  EXPECT_EQ(complaint([](SamplingParams& p) { p.max_tokens = -1; }), "max_tokens must be 0 or more, not -1");
  EXPECT_EQ(complaint([](SamplingParams& p) { p.stop = {"a", ""}; }), "a stop string must have 1 to 1024 bytes, not 0");
  EXPECT_EQ(complaint([](SamplingParams& p) { p.stop.assign(65, "x"); }), "stop has 65 strings, but at most 64 are allowed");
  EXPECT_EQ(complaint([](SamplingParams& p) { p.logprobs = 101; }), "logprobs must be between 0 and the vocabulary's 100, not 101");
}

TEST(SamplingState, KeepsNoCountsUnlessSomethingNeedsThem) {
  SamplingParams params;
  std::vector<int32_t> prompt = {1, 2, 3};
  SamplingState state(params, 5, 2, std::make_shared<LogitEdits>(params, prompt));
  state.add(7);
  EXPECT_TRUE(state.edits().empty());
  SampleRow row = state.row(4);
  EXPECT_EQ(row.seed, 5u);
  EXPECT_EQ(row.choice, 2);
  EXPECT_EQ(row.position, 4);
  EXPECT_EQ(row.n_edits, 0);
}

TEST(SamplingState, CountsEqualCountingTheTokensAgain) {
  std::mt19937 rng(3);
  SamplingParams params;
  params.repetition_penalty = 1.2f;
  params.logit_bias = {{4, 1.5f}, {60, -2.f}};
  std::vector<int32_t> prompt, answer;
  for (int i = 0; i < 20; i++) prompt.push_back(int32_t(rng() % 30));
  SamplingState state(params, 0, 0, std::make_shared<LogitEdits>(params, prompt));
  for (int i = 0; i < 100; i++) {
    answer.push_back(int32_t(rng() % 50));
    state.add(answer.back());
    std::map<int32_t, LogitEdit> expected;
    for (auto [token, bias] : params.logit_bias) expected[token].bias = bias;
    for (int32_t t : prompt) expected[t].seen = 1;
    for (int32_t t : answer) {
      expected[t].seen = 1;
      expected[t].n_generated++;
    }
    ASSERT_EQ(state.edits().size(), expected.size());
    for (const LogitEdit& e : state.edits()) {
      ASSERT_TRUE(expected.count(e.token));
      EXPECT_EQ(e.seen, expected[e.token].seen);
      EXPECT_EQ(e.n_generated, expected[e.token].n_generated);
      EXPECT_EQ(e.bias, expected[e.token].bias);
    }
  }
}

TEST(SamplingState, FrequencyCountsTheAnswerAndNotThePrompt) {
  SamplingParams params;
  params.frequency_penalty = 1;
  std::vector<int32_t> prompt = {1, 2};
  SamplingState state(params, 0, 0, std::make_shared<LogitEdits>(params, prompt));
  EXPECT_TRUE(state.edits().empty());
  state.add(9);
  ASSERT_EQ(state.edits().size(), 1u);
  EXPECT_EQ(state.edits()[0].token, 9);
  EXPECT_EQ(state.edits()[0].n_generated, 1);
}

TEST(SamplingState, PresenceAloneCountsTheAnswerAndNotThePrompt) {
  SamplingParams params;
  params.presence_penalty = 0.5f;
  std::vector<int32_t> prompt = {1, 2};
  SamplingState state(params, 0, 0, std::make_shared<LogitEdits>(params, prompt));
  EXPECT_TRUE(state.counts());
  EXPECT_TRUE(state.edits().empty());
  state.add(2);
  state.add(9);
  state.add(9);
  ASSERT_EQ(state.edits().size(), 2u);
  EXPECT_EQ(state.edits()[0].token, 2);
  EXPECT_EQ(state.edits()[0].n_generated, 1);
  EXPECT_EQ(state.edits()[1].token, 9);
  EXPECT_EQ(state.edits()[1].n_generated, 2);
  EXPECT_EQ(state.row(5).presence_penalty, 0.5f);
  EXPECT_EQ(state.row(5).n_edits, 2);
}

TEST(SamplingState, AnswersShareTheEditsThatTheyBeginWith) {
  SamplingParams params;
  params.frequency_penalty = 1;
  params.logit_bias = {{4, 1.5f}, {60, -2.f}};
  auto first = std::make_shared<LogitEdits>(params, std::vector<int32_t>{1, 2});
  SamplingState a(params, 0, 0, first), b(params, 0, 1, first);
  EXPECT_EQ(a.edits().data(), b.edits().data());
  a.add(60);
  EXPECT_EQ(b.edits()[1].n_generated, 0) << "one answer's counts are another's";
  EXPECT_EQ(a.edits()[1].n_generated, 1);
  EXPECT_EQ(a.edits()[1].bias, -2.f);
}

}  // namespace
}  // namespace mr
