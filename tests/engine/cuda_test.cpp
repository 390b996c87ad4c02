// The engine on the GPU. Every fixture's logits against transformers, with a bound derived from bf16; what is generated step by step
// (graphs, tokens that stay on the device, launches ahead) against one pass over the whole answer. Skipped without a GPU.
#include <cmath>
#include <set>
#include <thread>

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
// error does to the next one's softmax. Where that softmax is sharper (heads normed and not scaled down: q . k grows with the head's
// size and so does its error), or another expert may be chosen, errors grow by a few times more.
double bf16_bound(const Engine& engine) {
  const ModelSpec& spec = engine.model().spec();
  double sharper = 1;
  for (const LayerSpec& layer : spec.layers) {
    if (std::holds_alternative<MoeSpec>(layer.ffn)) sharper = std::max(sharper, 3.0);
    if (auto* a = std::get_if<AttentionSpec>(&layer.mixer)) sharper = std::max(sharper, double(a->scale) * std::sqrt(a->head_dim));
  }
  return sharper * 2 * 0x1p-9 * std::sqrt(8.0 * double(spec.layers.size()) + 4);
}

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
    // A GPU keeps activations in bf16 where the format rounds them to 8 bits: that rounding is missing.
    const double bound = bf16_bound(*engine) * (expected.value("rounds_activations", false) ? 6 : 1);
    EXPECT_LT(relative, bound) << rows << " rows a step";
    fmt::print("{}: {:.4f} of {:.4f}\n", name, relative, bound);
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
    if (i == 3) {
      requests.back().sampling.temperature = 0.8f;
      requests.back().sampling.seed = 5;
    }
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
  const double spread = expected_of(GetParam())["max_abs_logit"];
  EXPECT_LT(worst, 4 * bf16_bound(*engine) * spread);
  for (const StateStats::Group& g : engine->state_stats().group) EXPECT_EQ(g.n_used, 0);
}

// A folder with this configuration alone: weights are made up.
std::filesystem::path made_up(const std::string& name, const std::string& config) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / name;
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "config.json") << config;
  return folder;
}

// The difference between log-probabilities of answers and what another engine scores them with, root mean square. Logits of made-up
// weights have unit variance; a log-probability is a difference of two.
double difference_of_scores(Engine& other, const std::vector<Request>& requests, const Answers& answers) {
  double error = 0;
  int n = 0;
  for (size_t i = 0; i < requests.size(); i++) {
    const Answer& a = answers[i][0];
    Request score = greedy(requests[i].prompt, 0);
    score.prompt.insert(score.prompt.end(), a.tokens.begin(), a.tokens.end());
    score.score_prompt = true;
    const Answer scored = run_one(other, score);
    for (size_t t = 0; t < a.tokens.size(); t++, n++)
      error += std::pow(scored.prompt[requests[i].prompt.size() + t].logprob - a.logprobs[t], 2);
  }
  return std::sqrt(error / n);
}

// Layers so large that steps of up to 16 rows are one kernel each: the CPU scores what the GPU generated so.
TEST(CudaEngine, ChainsOfRowsAreWhatTheCpuScores) {
  if (!cuda_available()) GTEST_SKIP() << "no GPU";
  const std::filesystem::path model = made_up("millrace_large_layers", R"({"model_type": "llama", "hidden_size": 4096,
    "intermediate_size": 8192, "num_hidden_layers": 2, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    "vocab_size": 1000, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 10000.0})");
  EngineOptions options{.device = "cuda", .max_seqs = 16, .max_batch_tokens = 512, .max_context = 1024, .state_bytes = 1 << 28};
  options.random_weights = 5;
  auto gpu = Engine::create(model, options);
  options.device = "cpu";
  auto cpu = Engine::create(model, options);
  std::vector<std::string> launched;
  auto* backend = dynamic_cast<CudaBackend*>(&gpu->backend());
  ASSERT_NE(backend, nullptr);
  backend->log_launches([&](const std::string& line) { launched.push_back(line); });
  auto has = [&](const std::string& kernel) {
    return std::ranges::any_of(launched, [&](const std::string& line) { return line.starts_with(kernel); });
  };
  std::mt19937 rng(6);
  for (auto [n, kernel] :
       {std::pair{1, "chain_kernel<false>"}, {2, "rows_kernel<8, false>"}, {7, "rows_kernel<8, false>"}, {16, "rows_kernel<16, false>"}}) {
    launched.clear();
    std::vector<Request> requests;
    for (int i = 0; i < n; i++) {
      requests.push_back(greedy({}, 12));
      requests.back().sampling.ignore_eos = true;
      for (int k = 3 + 17 * i; k > 0; k--) requests.back().prompt.push_back(int32_t(rng() % 1000));
    }
    const Answers answers = run_all(*gpu, requests);
    for (const auto& a : answers) ASSERT_EQ(a[0].tokens.size(), 12u) << a[0].error;
    EXPECT_TRUE(has(kernel)) << n << " rows did not reach " << kernel;
    EXPECT_LT(difference_of_scores(*cpu, requests, answers), 2 * bf16_bound(*gpu)) << n << " rows";
  }
}

// A shape whose heads the fast kernels take, after a prefix that they read once for all: the CPU scores what the GPU generated.
TEST(CudaEngine, AnswersBehindASharedPrefixAreWhatTheCpuScores) {
  if (!cuda_available()) GTEST_SKIP() << "no GPU";
  const std::filesystem::path model = made_up("millrace_cuda_shape", R"({"model_type": "llama", "hidden_size": 512,
    "intermediate_size": 1024, "num_hidden_layers": 3, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64,
    "vocab_size": 1000, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 10000.0})");
  EngineOptions options{.device = "cuda", .max_seqs = 32, .max_batch_tokens = 512, .max_context = 2048, .random_weights = 3};
  auto gpu = Engine::create(model, options);
  options.device = "cpu";
  auto cpu = Engine::create(model, options);
  std::mt19937 rng(4);
  std::vector<int32_t> prefix(1100);
  for (int32_t& t : prefix) t = int32_t(rng() % 1000);
  run_one(*gpu, greedy(prefix, 1));
  std::vector<Request> requests;
  for (int i = 0; i < 20; i++) {
    requests.push_back(greedy(prefix, 40));
    for (int n = 1 + 5 * i; n > 0; n--) requests.back().prompt.push_back(int32_t(rng() % 1000));
    if (i % 3 == 0) {
      requests.back().sampling.temperature = 1;
      requests.back().sampling.seed = 9;
      requests.back().sampling.logprobs = 3;
    }
  }
  Answers answers = run_all(*gpu, requests);
  EXPECT_GT(gpu->stats().prefix_hit_tokens, 20 * 1000);
  for (const auto& a : answers) ASSERT_EQ(a[0].tokens.size(), 40u) << a[0].error;
  EXPECT_LT(difference_of_scores(*cpu, requests, answers), 2 * bf16_bound(*gpu));
}

// After steps of every number of rows the device has lost what the plan says, but for room that graphs may still take. Kernels' code
// is loaded by an engine before, since it is nobody's.
TEST(CudaEngine, TakesTheMemoryThatThePlanSays) {
  if (!cuda_available()) GTEST_SKIP() << "no GPU";
  // Weights of 34 to 134 MB: in chunks, the unused ends would be 200 MB.
  const std::string llama = R"({"model_type": "llama", "hidden_size": 4096, "intermediate_size": 8192, "num_hidden_layers": 4,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 32000, "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0})";
  const std::string mixtral = R"({"model_type": "mixtral", "hidden_size": 1024, "intermediate_size": 1024, "num_hidden_layers": 4,
    "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 64, "vocab_size": 32000, "max_position_embeddings": 8192,
    "num_local_experts": 16, "num_experts_per_tok": 4, "rms_norm_eps": 1e-5, "rope_theta": 10000.0})";
  constexpr int64_t mega = 1 << 20;
  auto probe = make_cuda_backend();
  auto free_bytes = [&] { return probe->memory().bytes - probe->own_bytes(); };
  for (const auto& [name, config] : {std::pair{"millrace_plan_llama", llama}, {"millrace_plan_mixtral", mixtral}}) {
    const std::filesystem::path model = made_up(name, config);
    for (bool cold : {true, false}) {
      const int64_t before = free_bytes();
      auto engine = Engine::create(model, {.device = "cuda", .max_seqs = 96, .max_batch_tokens = 1024, .random_weights = 3});
      std::mt19937 rng(6);
      for (int n : {1, 2, 7, 16, 33, 64, 96}) {
        std::vector<Request> requests;
        for (int i = 0; i < n; i++) {
          requests.push_back(random_request(rng, 32000, 900, 24));
          requests.back().sampling.ignore_eos = true;
        }
        for (const auto& a : run_all(*engine, requests)) ASSERT_NE(a[0].finish, Finish::error) << a[0].error;
      }
      const EngineMemory& plan = engine->memory();
      const int64_t taken = before - free_bytes(), own = engine->backend().own_bytes();
      fmt::print("{}{}: planned {}, taken {}; for itself planned {}, taken {}\n{}", name, cold ? ", code included" : "",
                 size_text(plan.bytes()), size_text(taken), size_text(plan.own_bytes()), size_text(own), plan.text());
      if (cold) continue;
      EXPECT_LE(own, plan.own_bytes());
      EXPECT_LE(taken, plan.bytes() + 32 * mega) << "allocations are rounded up to 2 MiB";
      EXPECT_GE(taken, plan.bytes() - (plan.own_bytes() - own) - 32 * mega);
    }
  }
}

// Chains of two engines at once would wait for each other for ever if they did not take turns.
TEST(CudaEngine, TwoAtOnceAnswerAsEachAlone) {
  if (!cuda_available()) GTEST_SKIP() << "no GPU";
  const std::filesystem::path model = made_up("millrace_two_engines", R"({"model_type": "llama", "hidden_size": 2048,
    "intermediate_size": 8192, "num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 128,
    "vocab_size": 1000, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 10000.0})");
  const EngineOptions options{
      .device = "cuda", .max_seqs = 2, .max_batch_tokens = 256, .max_context = 1024, .state_bytes = 1 << 26, .random_weights = 5};
  Request request = greedy({1, 2, 3, 4, 5, 6, 7}, 600);
  request.sampling.ignore_eos = true;
  std::vector<std::unique_ptr<Engine>> engines;
  std::vector<Answer> alone;
  std::set<std::string> chains;
  for (int i = 0; i < 2; i++) {
    Engine& engine = *engines.emplace_back(Engine::create(model, options));
    dynamic_cast<CudaBackend&>(engine.backend()).log_launches([&](const std::string& line) {
      if (line.starts_with("chain_kernel")) chains.insert(line);
    });
    alone.push_back(run_one(engine, request));
    dynamic_cast<CudaBackend&>(engine.backend()).log_launches({});
    ASSERT_EQ(alone.back().tokens.size(), 600u) << alone.back().error;
  }
  EXPECT_FALSE(chains.empty()) << "no chain ran";
  Answer together[2];
  std::thread other([&] { together[1] = run_one(*engines[1], request); });
  together[0] = run_one(*engines[0], request);
  other.join();
  for (size_t i = 0; i < 2; i++) EXPECT_EQ(together[i].tokens, alone[i].tokens) << together[i].error;
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
  for (size_t i = 0; i < logits[0].size(); i++) {
    error += std::pow(logits[0][i] - logits[1][i], 2);
    size += std::pow(logits[0][i], 2);
  }
  EXPECT_LT(std::sqrt(error / size), bound);
}

TEST(CudaEngine, WithoutAGpuItIsASentence) {
  if (cuda_available()) GTEST_SKIP() << "there is a GPU";
  EXPECT_THROW(open("llama_gqa", {.device = "cuda"}), Error);
}

}  // namespace
}  // namespace mr
