// Runs requests through an engine and collects whole answers.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "core/error.h"
#include "core/json.h"
#include "engine/engine.h"
#include "model/arch/arch.h"

namespace mr {

struct Answer {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  std::vector<std::vector<TopToken>> top;
  std::string text;
  std::vector<Sampled> prompt;
  Finish finish = Finish::none;
  std::string error;
  Timing timing;
  int n_events = 0;

  void take(const TokenEvent& e) {
    EXPECT_EQ(finish, Finish::none) << "an event after the last one";
    EXPECT_EQ(e.tokens.size(), e.sampled.size());
    n_events++;
    tokens.insert(tokens.end(), e.tokens.begin(), e.tokens.end());
    for (const Sampled& s : e.sampled) {
      logprobs.push_back(s.logprob);
      top.push_back(s.top);
    }
    text += e.text;
    prompt.insert(prompt.end(), e.prompt.begin(), e.prompt.end());
    finish = e.finish;
    error = e.error;
    timing = e.timing;
  }

  // Truncates it where `other` ends.
  void cut_like(const Answer& other) {
    finish = other.finish;
    text = other.text;  // may end in half a character
    if (tokens.size() > other.tokens.size()) {
      tokens.resize(other.tokens.size());
      logprobs.resize(other.tokens.size());
    }
    if (prompt.size() > other.prompt.size()) prompt.resize(other.prompt.size());
  }
};

// Bitwise.
inline void expect_same(const Answer& a, const Answer& b, const std::string& what) {
  EXPECT_EQ(a.tokens, b.tokens) << what;
  EXPECT_EQ(a.finish, b.finish) << what;
  EXPECT_EQ(a.text, b.text) << what;
  ASSERT_EQ(a.logprobs.size(), b.logprobs.size()) << what;
  for (size_t i = 0; i < a.logprobs.size(); i++)
    EXPECT_EQ(std::memcmp(&a.logprobs[i], &b.logprobs[i], 4), 0) << what << ": log-probability " << i;
  ASSERT_EQ(a.prompt.size(), b.prompt.size()) << what;
  for (size_t i = 0; i < a.prompt.size(); i++)
    EXPECT_EQ(std::memcmp(&a.prompt[i].logprob, &b.prompt[i].logprob, 4), 0) << what << ": prompt token " << i;
}

using Answers = std::vector<std::vector<Answer>>;  // [request][choice]

inline Answers run_all(Engine& engine, const std::vector<Request>& requests) {
  Answers answers(requests.size());
  for (size_t i = 0; i < requests.size(); i++) {
    answers[i].resize(size_t(requests[i].n));
    engine.submit(requests[i],
                  [&answers, i, first = requests[i].first_choice](const TokenEvent& e) { answers[i][size_t(e.choice - first)].take(e); });
  }
  int n_steps = 0;
  while (engine.step()) {
    engine.check_invariants();
    if (++n_steps > 100000) {
      ADD_FAILURE() << "the engine does not come to an end";
      break;
    }
  }
  for (auto& choices : answers)
    for (Answer& a : choices) EXPECT_NE(a.finish, Finish::none);
  return answers;
}

inline Answer run_one(Engine& engine, const Request& request) { return run_all(engine, {request})[0][0]; }

inline std::filesystem::path fixture(const std::string& name) {
  std::filesystem::path directory = std::filesystem::path(MR_FIXTURES) / "models" / name;
  return std::filesystem::exists(directory / "model.gguf") ? directory / "model.gguf" : directory;
}

inline Json expected_of(const std::string& name) {
  return Json::parse(std::ifstream(std::filesystem::path(MR_FIXTURES) / "models" / name / "expected.json"));
}

// With an architecture in the registry.
inline std::vector<std::string> fixture_names() {
  namespace fs = std::filesystem;
  std::vector<std::string> names;
  for (auto& entry : fs::directory_iterator(fs::path(MR_FIXTURES) / "models")) {
    bool known = fs::exists(entry.path() / "model.gguf");
    if (fs::exists(entry.path() / "config.json")) {
      std::string family = read_json(entry.path() / "config.json")["model_type"];
      known |= std::ranges::count(arch_names(), family) > 0;
    }
    if (known) names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

inline std::unique_ptr<Engine> open(const std::string& name, EngineOptions options = {}) {
  if (options.threads == 0) options.threads = 2;
  return Engine::create(fixture(name), options);
}

inline Request greedy(std::vector<int32_t> prompt, int max_tokens) {
  Request r;
  r.prompt = std::move(prompt);
  r.sampling.temperature = 0;
  r.sampling.max_tokens = max_tokens;
  return r;
}

// A request of any kind: greedy or sampled, with penalties, biases, log-probabilities, scores.
inline Request random_request(std::mt19937& rng, int vocab, int max_prompt, int max_answer) {
  auto pick = [&](int n) { return int(rng() % unsigned(n)); };
  Request r;
  for (int n = 1 + pick(max_prompt); n > 0; n--) r.prompt.push_back(pick(vocab));
  SamplingParams& s = r.sampling;
  s.max_tokens = 1 + pick(max_answer);
  s.seed = rng();
  s.temperature = pick(3) ? 0.5f + 0.1f * float(pick(10)) : 0;
  if (pick(3) == 0) s.top_k = 1 + pick(20);
  if (pick(3) == 0) s.top_p = 0.5f + 0.05f * float(pick(10));
  if (pick(4) == 0) s.min_p = 0.02f;
  if (pick(4) == 0) s.repetition_penalty = 1.3f;
  if (pick(4) == 0) s.frequency_penalty = 0.5f;
  if (pick(4) == 0) s.presence_penalty = -0.5f;
  if (pick(4) == 0) s.logit_bias[pick(vocab)] = 3;
  s.logprobs = pick(3);
  s.ignore_eos = pick(2);
  r.score_prompt = pick(4) == 0;
  return r;
}

}  // namespace mr
