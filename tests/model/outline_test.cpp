// A model's outline is the loaded model less its weights.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "core/error.h"
#include "model/arch/arch.h"
#include "model/model.h"

namespace mr {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> fixtures() {
  std::vector<fs::path> paths;
  for (auto& entry : fs::directory_iterator(fs::path(MR_FIXTURES) / "models")) {
    if (fs::exists(entry.path() / "model.gguf")) paths.push_back(entry.path() / "model.gguf");
    if (!fs::exists(entry.path() / "config.json")) continue;
    std::string family = read_json(entry.path() / "config.json")["model_type"];
    if (std::ranges::count(arch_names(), family)) paths.push_back(entry.path());
  }
  return paths;
}

void expect_same(const Model& outline, const Model& model, const std::string& name) {
  EXPECT_TRUE(outline.weights().empty()) << name;
  EXPECT_EQ(outline.weight_bytes(), model.weight_bytes()) << name;
  EXPECT_EQ(outline.decode_bytes(), model.decode_bytes()) << name;
  for (auto [rows, out] : {std::pair{1, 1}, {1, 0}, {7, 3}, {512, 16}})
    EXPECT_EQ(outline.workspace(rows, out), model.workspace(rows, out)) << name;
  auto a = outline.layout().groups(), b = model.layout().groups();
  ASSERT_EQ(a.size(), b.size()) << name;
  for (size_t i = 0; i < a.size(); i++)
    EXPECT_TRUE(a[i].kind == b[i].kind && a[i].window == b[i].window && a[i].bytes == b[i].bytes) << name << " group " << i;
}

TEST(Outline, EqualsTheLoadedModel) {
  auto backend = make_ref_backend();
  ASSERT_GE(fixtures().size(), 30u);
  for (const fs::path& path : fixtures()) {
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
  for (const char* name : {"llama_bias", "gemma4", "mixtral", "mamba2", "jamba"}) {
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

TEST(Outline, DoesNotRunAndSeesMisshapenTensors) {
  auto backend = make_ref_backend();
  auto files = Checkpoint::open(fs::path(MR_FIXTURES) / "models" / "llama_gqa");
  auto outline = Model::outline(*files, *backend, {});
  Arena arena(1 << 20);
  Batch batch{};
  StateMemory state;
  Step step{*backend, batch, state, arena};
  EXPECT_THROW(outline->forward(step), Error);

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
