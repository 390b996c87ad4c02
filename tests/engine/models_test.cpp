// Every fixture through the whole engine against its oracle: greedy answers are those of transformers, and so are the
// log-probabilities of prompt and answer.
#include <cmath>

#include "engine/harness.h"

namespace mr {
namespace {

struct Oracle {
  std::vector<int32_t> prompt, greedy, all;
  int vocab;
  std::vector<float> logits;  // [all.size(), vocab]
  double tolerance;           // of log-probabilities; rounding activations to 8 bits magnifies what differs in the last place

  explicit Oracle(const std::string& name) {
    Json e = expected_of(name);
    prompt = e["prompt"].get<std::vector<int32_t>>();
    greedy = e["greedy"].get<std::vector<int32_t>>();
    all = prompt;
    all.insert(all.end(), greedy.begin(), greedy.end());
    vocab = e["vocab"];
    tolerance = e.value("rounds_activations", false) ? 0.2 : 2e-3;
    logits.resize(all.size() * size_t(vocab));
    std::ifstream file(std::filesystem::path(MR_FIXTURES) / "models" / name / "logits.f32", std::ios::binary);
    file.read(reinterpret_cast<char*>(logits.data()), std::streamsize(logits.size() * 4));
    EXPECT_EQ(size_t(file.gcount()), logits.size() * 4) << name;
  }
  // Of the token at `position`, given those before it.
  double logprob(int position) const {
    const float* row = &logits[size_t(position - 1) * size_t(vocab)];
    double sum = 0;
    for (int i = 0; i < vocab; i++) sum += std::exp(double(row[i]));
    return double(row[all[size_t(position)]]) - std::log(sum);
  }
};

class Fixture : public testing::TestWithParam<std::tuple<std::string, std::string>> {};

TEST_P(Fixture, GreedyAnswerAndScoresEqualTheOracle) {
  auto [name, device] = GetParam();
  Oracle oracle(name);
  auto engine = open(name, {.device = device, .kv_dtype = DType::f32, .max_batch_tokens = 24, .page_tokens = 16});
  Request request = greedy(oracle.prompt, int(oracle.greedy.size()));
  request.score_prompt = true;
  request.sampling.ignore_eos = true;
  Answer answer = run_one(*engine, request);
  EXPECT_EQ(answer.finish, Finish::length) << answer.error;
  EXPECT_EQ(answer.tokens, oracle.greedy);

  ASSERT_EQ(answer.prompt.size(), oracle.prompt.size());
  EXPECT_TRUE(std::isnan(answer.prompt[0].logprob));
  for (size_t i = 1; i < oracle.prompt.size(); i++) {
    EXPECT_EQ(answer.prompt[i].token, oracle.prompt[i]);
    EXPECT_NEAR(answer.prompt[i].logprob, oracle.logprob(int(i)), oracle.tolerance) << "prompt token " << i;
  }
  for (size_t i = 0; i < answer.logprobs.size(); i++)
    EXPECT_NEAR(answer.logprobs[i], oracle.logprob(int(oracle.prompt.size() + i)), oracle.tolerance) << "answer token " << i;
}

TEST(Fixtures, EveryFamilyIsAmongThem) {
  std::vector<std::string> names = fixture_names();
  for (const char* name : {"llama_gqa", "llama_rope_yarn", "smollm3",   "qwen2",  "qwen3",   "mistral_window", "mamba",      "falcon_mamba",
                           "mamba2",    "mixtral",         "qwen3_moe", "phi3",   "granite", "nemotron",       "starcoder2", "gemma",
                           "gemma2",    "gemma3",          "gemma3n",   "gemma4", "jamba",   "lfm2",           "gguf_q4_1"})
    EXPECT_EQ(std::ranges::count(names, name), 1) << name;
  for (const char* name : {"gemma", "gemma2", "gemma3", "gemma3n", "mistral_window", "mixtral", "qwen3_moe_norm", "phi3",
                           "llama_rope_longrope", "granite", "nemotron", "starcoder2", "jamba", "mamba2", "falcon_mamba", "lfm2"})
    EXPECT_EQ(std::ranges::count(names, std::string("gguf_") + name), 1) << name;
}

// What a specification says of itself before anything is loaded is what the files hold and the mixers declare.
TEST(Fixtures, ParametersAndStateAreAsSpecified) {
  for (const std::string& name : fixture_names()) {
    auto engine = open(name, {.kv_dtype = DType::f16});
    int64_t stored = 0;
    for (const StoredTensor& t : engine->checkpoint().tensors()) {
      if (t.name.starts_with("rope_f")) continue;  // divisors of frequencies
      int64_t n = 1;
      for (int64_t d : t.shape) n *= d;
      stored += n;
    }
    const ModelSpec& spec = engine->model().spec();
    if (engine->checkpoint().quantization().empty()) {  // else codes and scales are counted
      EXPECT_EQ(parameters(spec), stored) << name;
    }
    EXPECT_LE(active_parameters(spec), parameters(spec)) << name;
    StateLayout layout = layout_of(spec, {DType::f16});
    EXPECT_EQ(layout.bytes_per_token(), engine->model().layout().bytes_per_token()) << name;
    EXPECT_EQ(layout.bytes_per_sequence(), engine->model().layout().bytes_per_sequence()) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(All, Fixture, testing::Combine(testing::ValuesIn(fixture_names()), testing::Values("ref", "cpu")),
                         [](const auto& info) { return std::get<0>(info.param) + "_" + std::get<1>(info.param); });

}  // namespace
}  // namespace mr
