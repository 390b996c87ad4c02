// Weights that are encoded while they are loaded: a model that is quantized on the way is the model of the file that the `gguf` package
// quantized to the same format, and every format stays near the original.
#include "engine/harness.h"
#include "model/weight_formats.h"

namespace mr {
namespace {

// All logits of a fixture's prompt.
std::vector<float> logits_of(const std::string& name, const EngineOptions& options) {
  auto engine = open(name, options);
  std::vector<float> all;
  Request request = greedy(expected_of(name)["prompt"].get<std::vector<int32_t>>(), 1);
  request.score_prompt = true;
  request.on_logits = [&](int, std::span<const float> row) { all.insert(all.end(), row.begin(), row.end()); };
  run_one(*engine, request);
  return all;
}

EngineOptions with(const std::string& format, const std::string& device = "cpu", bool again = false) {
  EngineOptions o{.device = device, .kv_dtype = DType::f32, .page_tokens = 16};
  o.quantize = format;
  o.requantize = again;
  return o;
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double off = 0, all = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); i++) {
    off += double(a[i] - b[i]) * double(a[i] - b[i]);
    all += double(b[i]) * b[i];
  }
  return std::sqrt(off / all);
}

// Rounding weights of b bits moves the logits by about the share that it moves the weights, whatever the path to them: the bounds are three
// times the root mean square error of llama.cpp's quantizer on normal weights (tests/fixtures/quant/errors.json), rounded up; 1/508 of the
// largest value for q8_0.
TEST(Quantize, EveryFormatStaysNearTheOriginal) {
  const std::vector<float> plain = logits_of("llama_f16", with("", "ref"));
  ASSERT_FALSE(plain.empty());
  for (auto [format, bound] : {std::pair{"f32", 1e-5},
                               {"f16", 1e-5},
                               {"bf16", 0.02},
                               {"q8_0", 0.03},
                               {"q6_k", 0.06},
                               {"q5_k", 0.12},
                               {"q5_0", 0.15},
                               {"q5_1", 0.15},
                               {"q4_k", 0.25},
                               {"q4_k_m", 0.25},
                               {"q4_0", 0.3},
                               {"q4_1", 0.3},
                               {"iq4_nl", 0.3},
                               {"mxfp4", 0.5}}) {
    const double d = distance(logits_of("llama_f16", with(format)), plain);
    EXPECT_LT(d, bound) << format;
    const bool exact = std::string_view(format) == "f32" || std::string_view(format) == "f16";
    EXPECT_TRUE(exact || d > 1e-6) << format;
  }
}

// The same values by another way: what was encoded on load is what the codec decodes, on every backend. The CPU rounds activations to 16
// bits, which Gemma 3n's thresholds amplify.
TEST(Quantize, GivesTheSameModelOnEveryBackend) {
  for (const char* name : {"llama_bf16", "mixtral", "jamba", "gemma3n", "mamba2", "phi3"})
    for (const char* format : {"q8_0", "q4_0", "q5_1"})
      EXPECT_LT(distance(logits_of(name, with(format, "cpu")), logits_of(name, with(format, "ref"))), 1e-3) << name << " " << format;
}

TEST(Quantize, NeedsToBeToldToDoItTwice) {
  try {
    open("gguf_q4_1", with("q8_0"));
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("q4_1"), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("--requantize"), std::string::npos) << e.what();
  }
  // q8_0 of 4-bit values: at most half a step of 1/127 of a block's largest is lost.
  EXPECT_LT(distance(logits_of("gguf_q4_1", with("q8_0", "cpu", true)), logits_of("gguf_q4_1", with("", "ref"))), 0.03);
  EXPECT_NO_THROW(open("gguf_q8_0", with("q8_0")));  // it is in that format
}

TEST(Quantize, NamesWhatThereIs) {
  try {
    open("llama_bf16", with("q9_9"));
    FAIL();
  } catch (const Error& e) {
    for (const char* word : {"'q9_9'", "q4_k_m", "q6_k", "mxfp4"})
      EXPECT_NE(std::string(e.what()).find(word), std::string::npos) << e.what();
  }
}

// Random weights of a shape whose rows are blocks of 256.
TEST(Quantize, RandomWeightsToo) {
  const auto folder = std::filesystem::temp_directory_path() / "millrace_quantize_test";
  std::filesystem::create_directories(folder);
  Json config = Json::parse(std::ifstream(std::filesystem::path(MR_FIXTURES) / "models" / "llama_gqa" / "config.json"));
  config["hidden_size"] = 256;
  config["intermediate_size"] = 512;
  std::ofstream(folder / "config.json") << config.dump();
  auto logits = [&](const char* device, const std::string& format) {
    EngineOptions o = with(format, device);
    o.random_weights = 1;
    auto engine = Engine::create(folder, o);
    std::vector<float> all;
    Request request = greedy({1, 5, 9, 33, 7}, 1);
    request.score_prompt = true;
    request.on_logits = [&](int, std::span<const float> row) { all.insert(all.end(), row.begin(), row.end()); };
    run_one(*engine, request);
    return std::pair(all, engine->model().weight_bytes());
  };
  const int64_t plain = logits("cpu", "").second;
  for (const char* format : {"q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_xs", "q4_k_m", "mxfp4"}) {
    const auto [cpu, bytes] = logits("cpu", format);
    EXPECT_LT(distance(cpu, logits("ref", format).first), 2e-4) << format;
    EXPECT_LT(bytes, plain / 2) << format;
  }
  std::filesystem::remove_all(folder);
}

// llama.cpp's rules, by llama.cpp's names: Q4_K_M has Q6_K in the output, and in v and down of the first and last eighth and of every third
// layer between.
TEST(WeightFormats, MixesAsLlamaCppDoes) {
  ModelSpec spec;
  spec.layers.resize(32);
  const WeightFormats mix("q4_k_m", spec), plain("q4_k", spec);
  const Codec& bf16 = get_codec("bf16");
  auto of = [&](const WeightFormats& formats, const char* role, int layer, int64_t in = 4096) {
    return std::string(formats.choose(role, layer, in, bf16).name);
  };
  std::string layers;
  for (int i = 0; i < 32; i++)
    if (of(mix, "v", i) == "q6_k") layers += " " + std::to_string(i);
  EXPECT_EQ(layers, " 0 1 2 3 6 9 12 15 18 21 24 27 28 29 30 31");  // use_more_bits(i, 32) of llama-quant.cpp
  EXPECT_EQ(of(mix, "down", 0), "q6_k");
  EXPECT_EQ(of(mix, "gate", 0), "q4_k");
  EXPECT_EQ(of(plain, "v", 0), "q4_k");
  EXPECT_EQ(of(plain, "output", 0), "q6_k");
  EXPECT_EQ(of(plain, "output", 0, 576), "q8_0");
  EXPECT_EQ(of(plain, "embedding", 0), "q4_k");
  EXPECT_EQ(of(plain, "gate", 0, 576), "q5_0");
  EXPECT_EQ(of(plain, "gate", 0, 24), "bf16");
  EXPECT_EQ(of(plain, "router", 0), "bf16");
  EXPECT_EQ(of(WeightFormats("q8_0", spec), "output", 0), "q8_0");
  spec.tied = true;
  EXPECT_EQ(of(WeightFormats("q4_k", spec), "embedding", 0), "q6_k");
}

}  // namespace
}  // namespace mr
