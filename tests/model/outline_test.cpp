// A model's outline is the loaded model less its weights.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <fstream>

#include "core/error.h"
#include "model/fixtures.h"
#include "model/model.h"
#include "program/cost.h"

namespace mr {
namespace {

namespace fs = std::filesystem;

void expect_same(const Model& outline, const Model& model, const std::string& name) {
  EXPECT_TRUE(outline.weights().empty()) << name;
  EXPECT_EQ(outline.weight_bytes(), model.weight_bytes()) << name;
  for (auto [rows, out] : {std::pair{1, 1}, {1, 0}, {7, 3}, {512, 16}})
    EXPECT_EQ(outline.program().workspace(rows, out), model.program().workspace(rows, out)) << name;
  for (const Phase& phase : {Phase::generation(1, 100), Phase::generation(16, 7), Phase::prefill(2, 64)}) {
    const BatchShape shape(std::span(&phase, 1));
    const Cost a = cost(outline.program(), shape), b = cost(model.program(), shape);
    EXPECT_GT(b.weights, 0) << name;
    EXPECT_EQ(a.weights, b.weights) << name;
    // An outline does not know the scalars that Gemma 4 multiplies its layers' results by, and leaves them out.
    const double known = name.find("gemma4") == std::string::npos ? 1 : 0.95;
    for (auto [counted, whole] : {std::pair{a.bytes(), b.bytes()}, {a.flops, b.flops}}) {
      EXPECT_LE(counted, whole) << name;
      EXPECT_GE(counted, known * whole) << name;
    }
  }
  auto a = outline.layout().groups(), b = model.layout().groups();
  ASSERT_EQ(a.size(), b.size()) << name;
  for (size_t i = 0; i < a.size(); i++)
    EXPECT_TRUE(a[i].kind == b[i].kind && a[i].window == b[i].window && a[i].bytes == b[i].bytes) << name << " group " << i;
}

TEST(Outline, EqualsTheLoadedModel) {
  auto backend = make_ref_backend();
  ASSERT_GE(test::model_fixtures().size(), 30u);
  for (const fs::path& path : test::model_fixtures()) {
    auto files = Checkpoint::open(path);
    for (DType kv : {DType::f16, DType::f32}) {
      auto model = Model::load(*files, *backend, {kv});
      EXPECT_GT(model->weight_bytes(), 0);
      expect_same(*Model::outline(*files, *backend, {kv}), *model, path.string());
    }
  }
}

TEST(Outline, OfAConfigurationEqualsTheModelWithRandomWeights) {
  auto backend = make_ref_backend();
  for (const char* name : {"llama_bias", "gemma3n", "gemma4", "mixtral", "mamba2", "jamba"}) {
    auto files = Checkpoint::open(fs::path(MR_FIXTURES) / "models" / name, Checkpoint::Want::configuration);
    auto model = Model::load(*files, *backend, {DType::f16, 7});
    expect_same(*Model::outline(*files, *backend, {DType::f16}), *model, name);
  }
}

// Larger than any memory, and outlined in no time: 2 bytes a weight of every matrix, 4 a weight of every norm.
TEST(Outline, NeedsNoMemory) {
  fs::path directory = fs::path(testing::TempDir()) / "outline";
  fs::create_directories(directory);
  const int64_t layers = 1000, dim = 16384, hidden = 65536, vocab = 128000;
  std::ofstream(directory / "config.json") << Json{
      {"model_type", "llama"},      {"hidden_size", dim},       {"intermediate_size", hidden}, {"num_hidden_layers", layers},
      {"num_attention_heads", 128}, {"num_key_value_heads", 8}, {"vocab_size", vocab},         {"max_position_embeddings", 8192}};
  auto backend = make_ref_backend();
  auto files = Checkpoint::open(directory, Checkpoint::Want::configuration);
  auto outline = Model::outline(*files, *backend, {DType::f16});
  int64_t matrices = 2 * vocab * dim + layers * (2 * dim * dim + 2 * dim * 8 * 128 + 3 * dim * hidden);
  EXPECT_EQ(outline->weight_bytes(), 2 * matrices + 4 * dim * (2 * layers + 1));
  EXPECT_EQ(outline->layout().bytes_per_token(), layers * 8 * 128 * 2 * 2);
}

// Nor for lists of rows: a thousand layers of four million channels are outlined at once.
TEST(Outline, NeedsNoTimeForRows) {
  fs::path directory = fs::path(testing::TempDir()) / "outline_rows";
  fs::create_directories(directory);
  const int64_t layers = 1000, inner = 1 << 22;
  std::ofstream(directory / "config.json") << Json{{"model_type", "mamba"},      {"hidden_size", 8},   {"num_hidden_layers", layers},
                                                   {"vocab_size", 100},          {"state_size", 1},    {"conv_kernel", 2},
                                                   {"intermediate_size", inner}, {"time_step_rank", 1}};
  auto backend = make_ref_backend();
  auto files = Checkpoint::open(directory, Checkpoint::Want::configuration);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_GT(Model::outline(*files, *backend, {DType::f16})->weight_bytes(), layers * 2 * inner * 8);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
}

// Vectors and convolutions too: here each layer's decay has 2^30 values of 4 bytes.
TEST(Outline, NeedsNoMemoryForVectors) {
  fs::path directory = fs::path(testing::TempDir()) / "outline_vectors";
  fs::create_directories(directory);
  const int64_t inner = 1 << 20, n_state = 1024, conv = 1024;
  std::ofstream(directory / "config.json") << Json{{"model_type", "mamba"},      {"hidden_size", 8},      {"num_hidden_layers", 2},
                                                   {"vocab_size", 100},          {"state_size", n_state}, {"conv_kernel", conv},
                                                   {"intermediate_size", inner}, {"time_step_rank", 1}};
  auto backend = make_ref_backend();
  auto files = Checkpoint::open(directory, Checkpoint::Want::configuration);
  EXPECT_GT(Model::outline(*files, *backend, {DType::f16})->weight_bytes(), 2 * 4 * inner * (n_state + conv));
}

TEST(Outline, HasNoWeightsAndSeesMisshapenTensors) {
  auto backend = make_ref_backend();
  auto files = Checkpoint::open(fs::path(MR_FIXTURES) / "models" / "llama_gqa");
  EXPECT_FALSE(Model::outline(*files, *backend, {})->has_weights());

  fs::path directory = fs::path(testing::TempDir()) / "misshapen";
  fs::create_directories(directory);
  fs::copy(files->path(), directory, fs::copy_options::overwrite_existing);
  Json config = files->config();
  config["num_hidden_layers"] = 9;
  std::ofstream(directory / "config.json") << config;
  EXPECT_THROW(Model::outline(*Checkpoint::open(directory), *backend, {}), Error);
}

}  // namespace
}  // namespace mr
