// Conversions of every fixture: tensor by tensor against the twins that the `gguf` package made (tests/oracle/gguf_twins.py), there and
// back to the byte, and run against transformers' logits.
#include "convert/convert.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "engine/harness.h"
#include "model/weight_formats.h"

namespace mr {
namespace {

namespace fs = std::filesystem;

class Convert : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    folder = fs::temp_directory_path() / fmt::format("millrace_convert_{}", ::getpid());
    fs::remove_all(folder);
    fs::create_directories(folder);
  }
  void TearDown() override { fs::remove_all(folder); }
  fs::path converted(const fs::path& from, const std::string& name, ConvertOptions options = {}) {
    options.threads = 2;
    convert_model(from, folder / name, options);
    return folder / name;
  }
  fs::path folder;
};
using Conversions = Convert;

std::vector<float> values_of(const StoredTensor& t) {
  int64_t n = 1;
  for (int64_t d : t.shape) n *= d;
  std::vector<float> values(static_cast<size_t>(n));
  const Codec& codec = get_codec(t.format);
  codec.decode(t.bytes.data(), n, values.data());
  return values;
}

std::string format_of_matrices(const fs::path& model) {
  const auto files = Checkpoint::open(model);
  for (const StoredTensor& t : files->tensors())
    if (t.shape.size() == 2) return t.format;
  return "";
}

// What a container cannot keep to the byte: A is stored as -exp(A_log), norms that lack their 1 get it in f32, and the queries of these two
// models are scaled because a GGUF file cannot say how.
bool rounds(const std::string& fixture, const std::string& tensor) {
  if (tensor.find("A_log") != tensor.npos || tensor.find("ssm_a") != tensor.npos) return true;
  const bool gemma =
      fixture.find("gemma2") != fixture.npos || fixture.find("gemma3") != fixture.npos || fixture.find("gemma") != fixture.npos;
  return gemma && fixture.find("gemma3n") == fixture.npos && tensor.find("norm") != tensor.npos;
}

bool scales_queries(const std::string& fixture, const std::string& tensor) {
  return (fixture == "gemma2" && tensor.find("q_proj") != tensor.npos) || (fixture == "gemma3" && tensor.find("q_norm") != tensor.npos);
}

void expect_equal(const StoredTensor& got, const StoredTensor& want, const std::string& fixture) {
  EXPECT_EQ(got.shape, want.shape) << want.name;
  const std::vector<float> a = values_of(got), b = values_of(want);
  ASSERT_EQ(a.size(), b.size()) << want.name;
  const bool near = rounds(fixture, want.name) || scales_queries(fixture, want.name) || want.name.find("attn_q") != want.name.npos;
  for (size_t i = 0; i < a.size(); i++) {
    const float off = near ? 2e-7f * std::max(1.0f, std::abs(b[i])) : 0;
    ASSERT_LE(std::abs(a[i] - b[i]), off) << want.name << " " << i << ": " << a[i] << ", not " << b[i];
  }
}

void expect_same_tensors(const fs::path& got, const fs::path& want, const std::string& fixture) {
  const auto a = Checkpoint::open(got), b = Checkpoint::open(want);
  EXPECT_EQ(a->tensors().size(), b->tensors().size());
  for (const StoredTensor& t : b->tensors()) {
    ASSERT_TRUE(a->find(t.name)) << t.name;
    expect_equal(*a->find(t.name), t, fixture);
  }
}

void expect_logits(const fs::path& model, const std::string& fixture) {
  const Json expected = expected_of(fixture);
  const auto prompt = expected["prompt"].get<std::vector<int32_t>>();
  const size_t vocab = expected["vocab"];
  std::vector<float> want(prompt.size() * vocab), got;
  std::ifstream file(fs::path(MR_FIXTURES) / "models" / fixture / "logits.f32", std::ios::binary);
  ASSERT_TRUE(file.read(reinterpret_cast<char*>(want.data()), std::streamsize(want.size() * 4)));
  auto engine = Engine::create(model, {.device = "cpu", .threads = 2, .kv_dtype = DType::f32, .page_tokens = 16});
  Request request = greedy(prompt, 1);
  request.score_prompt = true;
  request.on_logits = [&](int, std::span<const float> row) { got.insert(got.end(), row.begin(), row.end()); };
  run_one(*engine, request);
  ASSERT_EQ(got.size(), want.size());
  double worst = 0;
  for (size_t i = 0; i < got.size(); i++) worst = std::max(worst, double(std::abs(got[i] - want[i])));
  EXPECT_LT(worst, 1e-4 * expected["max_abs_logit"].get<double>()) << model;
}

// Fixtures that GGUF has no words for, and why.
const std::map<std::string, std::string> kRefused = {
    {"gemma4", "gemma4_text"},
    {"llama_rope_dynamic", "positions"},
    {"llama_rope_dynamic_cross", "positions"},
    {"llama_rope_yarn_full", "position"},
    {"qwen3_moe", "layer 0"},
    {"smollm3", "layer"},
    {"gemma3n_four", "a size or a scale"},
    {"mamba_bias", "layer 0"},
};

// Those of gguf_twins.py, but for one that has the names of another family.
const std::set<std::string> kTwins = {"gemma",      "gemma2",         "gemma3", "gemma3n",      "mistral_window",
                                      "mixtral",    "qwen3_moe_norm", "phi3",   "granite",      "nemotron",
                                      "starcoder2", "jamba",          "mamba2", "falcon_mamba", "lfm2"};

std::vector<std::string> directories() {
  std::vector<std::string> names;
  for (const std::string& name : fixture_names())
    if (!name.starts_with("gguf_")) names.push_back(name);
  return names;
}

std::vector<std::string> gguf_files() {
  std::vector<std::string> names;
  for (const std::string& name : fixture_names())
    if (name.starts_with("gguf_")) names.push_back(name);
  return names;
}

TEST_P(Convert, ThereAndBack) {
  const std::string& name = GetParam();
  const auto refused = kRefused.find(name);
  if (const bool quantized = name.starts_with("quant_"); quantized || refused != kRefused.end()) {
    try {
      converted(fixture(name), "model.gguf");
      FAIL();
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(quantized ? "is quantized" : refused->second), std::string::npos) << e.what();
    }
    EXPECT_TRUE(fs::is_empty(folder));
    return;
  }
  const fs::path gguf = converted(fixture(name), "model.gguf");
  expect_logits(gguf, name);
  const fs::path twin = fs::path(MR_FIXTURES) / "models" / ("gguf_" + name) / "model.gguf";
  if (kTwins.contains(name)) expect_same_tensors(gguf, twin, name);
  const fs::path back = converted(gguf, "back", {.format = format_of_matrices(fixture(name))});
  expect_logits(back, name);
  const auto a = Checkpoint::open(back), b = Checkpoint::open(fixture(name));
  for (const StoredTensor& t : b->tensors()) {
    ASSERT_TRUE(a->find(t.name)) << t.name;
    EXPECT_EQ(a->find(t.name)->format, t.format) << t.name;
    if (!scales_queries(name, t.name)) expect_equal(*a->find(t.name), t, t.format == "f32" ? name : "");
  }
}
INSTANTIATE_TEST_SUITE_P(All, Convert, testing::ValuesIn(directories()), [](const auto& info) { return info.param; });

class FromGguf : public Convert {};

TEST_P(FromGguf, ThereAndBack) {
  const std::string& name = GetParam();
  const std::string format = format_of_matrices(fixture(name));
  const bool quantized = get_codec(format).block > 1;
  const fs::path directory = converted(fixture(name), "out", {.format = quantized ? "f32" : ""});
  expect_logits(directory, name);
  if (quantized) return;
  const fs::path again = converted(directory, "again.gguf");
  expect_logits(again, name);
  const auto a = Checkpoint::open(again), b = Checkpoint::open(fixture(name));
  for (const StoredTensor& t : b->tensors()) {
    ASSERT_TRUE(a->find(t.name)) << t.name;
    if (t.name == "rope_freqs.weight") continue;
    expect_equal(*a->find(t.name), t, name);
  }
}
INSTANTIATE_TEST_SUITE_P(All, FromGguf, testing::ValuesIn(gguf_files()), [](const auto& info) { return info.param; });

// Formats and containers.

std::vector<float> logits(const fs::path& model, const std::string& quantize, const std::vector<int32_t>& prompt) {
  EngineOptions options{.device = "cpu", .threads = 2};
  options.quantize = quantize;
  auto engine = Engine::create(model, options);
  std::vector<float> got;
  Request request = greedy(prompt, 1);
  request.score_prompt = true;
  request.on_logits = [&](int, std::span<const float> row) { got.insert(got.end(), row.begin(), row.end()); };
  run_one(*engine, request);
  return got;
}

TEST_F(Conversions, QuantizeAsLoadingDoes) {
  const std::vector<int32_t> prompt = {1, 5, 9, 33, 7};
  for (const char* name : {"llama_bf16", "mixtral", "qwen2"})
    for (const char* format : {"q8_0", "q4_0", "q5_1", "q4_k", "mxfp4"}) {
      const fs::path file = converted(fixture(name), "model.gguf", {.format = format, .force = true});
      EXPECT_EQ(logits(file, "", prompt), logits(fixture(name), format, prompt)) << name << " " << format;
    }
}

TEST_F(Conversions, GgufKeepsItsMetadata) {
  const fs::path file = converted(fixture("gguf_f32"), "model.gguf", {.format = "q8_0"});
  const auto a = Checkpoint::open(file), b = Checkpoint::open(fixture("gguf_f32"));
  EXPECT_EQ(a->config(), b->config());
  EXPECT_EQ(a->get("blk.0.ffn_up.weight").format, "q8_0");
  EXPECT_EQ(a->get("blk.0.attn_norm.weight").format, "f32");
}

TEST_F(Conversions, WriteShards) {
  for (const char* name : {"parts.gguf", "parts"}) {
    const fs::path out = converted(fixture("llama_gqa"), name, {.shard_bytes = 20000});
    const bool directory = fs::is_directory(out);
    size_t parts = 0;
    for (auto& entry : fs::directory_iterator(directory ? out : folder))
      parts += entry.path().filename().native().find("-of-000") != std::string::npos;
    EXPECT_GT(parts, 2u);
    expect_logits(directory ? out : folder / fmt::format("parts-00001-of-{:05}.gguf", parts), "llama_gqa");
  }
}

TEST_F(Conversions, KeepTheOtherFiles) {
  const fs::path in = folder / "in";
  fs::copy(fixture("llama_gqa"), in);
  std::ofstream(in / "generation_config.json") << R"({"temperature": 0.5})";
  std::ofstream(in / "chat_template.jinja") << "{{ messages }}";
  const fs::path out = converted(in, "out", {.format = "bf16"});
  EXPECT_TRUE(fs::exists(out / "generation_config.json"));
  EXPECT_TRUE(fs::exists(out / "chat_template.jinja"));
  EXPECT_EQ(read_json(out / "config.json")["dtype"], "bfloat16");
  const auto files = Checkpoint::open(out);
  for (const StoredTensor& t : files->tensors()) EXPECT_EQ(t.format, "bf16") << t.name;
}

// One sentence, and nothing left behind.
TEST_F(Conversions, RefuseWhatTheyCannotDo) {
  auto refuses = [&](const fs::path& from, const fs::path& to, ConvertOptions options, const char* words) {
    std::vector<fs::path> before, after;
    for (auto& entry : fs::recursive_directory_iterator(folder)) before.push_back(entry.path());
    try {
      convert_model(from, to, options);
      ADD_FAILURE() << words;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(words), std::string::npos) << e.what();
    }
    for (auto& entry : fs::recursive_directory_iterator(folder)) after.push_back(entry.path());
    EXPECT_EQ(before, after);
  };
  const fs::path llama = fixture("llama_gqa"), file = converted(llama, "model.gguf");
  refuses(llama, file, {}, "--force");
  refuses(file, file, {.force = true}, "itself");
  refuses(llama, llama, {.force = true}, "itself");
  refuses(llama, folder / "x.gguf", {.format = "q9"}, "q4_k_m");
  refuses(llama, folder / "x", {.format = "q4_k"}, ".gguf");
  refuses(fixture("gguf_q4_1"), folder / "x", {}, "--format bf16");
  refuses(fixture("gguf_q4_1"), folder / "x.gguf", {.format = "q4_0"}, "--requantize");
  refuses(llama, folder / "missing" / "x.gguf", {}, "missing");
  refuses(llama, folder, {.force = true}, "not replaced");
  refuses(folder / "nothing", folder / "x.gguf", {}, "nothing");
  EXPECT_NO_THROW(convert_model(fixture("gguf_q4_1"), folder / "y.gguf", {.format = "q4_0", .requantize = true}));
}

}  // namespace
}  // namespace mr
