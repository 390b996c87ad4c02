// Files that are odd: factors beside a weight, numbers in names that the model does not have, parts that exist already.
#include <gtest/gtest.h>

#include <numeric>

#include "convert/convert.h"
#include "io/files.h"
#include "io/gguf.h"
#include "io/model_writer.h"
#include "quant/codec.h"

namespace mr {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using test::expect_says;

fs::path model(const std::string& name) { return fs::path(MR_FIXTURES) / "models" / name / "model.gguf"; }

// A GGUF fixture, some of whose tensors are changed before it is written again.
class Changed {
 public:
  explicit Changed(const std::string& name) : file_(MappedFile(model(name))) {
    for (const StoredTensor& t : file_.tensors) add(t.name, t.format, t.shape, t.bytes);
  }
  void add(const std::string& name, const std::string& format, std::vector<int64_t> shape, std::span<const std::byte> bytes) {
    heads_.push_back(tensor_head(name, format, std::move(shape)));
    data_.emplace_back(bytes.begin(), bytes.end());
    EXPECT_EQ(data_.back().size(), size_t(heads_.back().bytes)) << name;
  }
  TensorHead& head(const std::string& name) { return heads_[index(name)]; }
  std::vector<std::byte>& data(const std::string& name) { return data_[index(name)]; }

  // The weight in NVFP4, of arbitrary codes under ordinary scales; `factors` beside it.
  void to_nvfp4(const std::string& name, const std::vector<float>& factors) {
    TensorHead& h = head(name + ".weight");
    h = tensor_head(h.name, "nvfp4", h.shape);
    std::vector<std::byte>& bytes = data(h.name);
    bytes.resize(size_t(h.bytes));
    for (size_t i = 0; i < bytes.size(); i++) bytes[i] = std::byte(i % 36 < 4 ? 0x28 + i % 13 : i * 89 % 251);  // 4 of E4M3, then 32 of codes
    add(name + ".scale", "f32", {int64_t(factors.size())}, std::as_bytes(std::span(factors)));
  }
  void write(const fs::path& to) const {
    GgufMetadata metadata;
    for (auto& [key, bytes] : file_.entries) metadata.push_back({key, {std::vector<std::byte>(bytes.begin(), bytes.end())}});
    write_gguf(to, metadata, heads_, 0, [&](size_t i, const auto& write) { write(data_[i]); });
  }

 private:
  size_t index(const std::string& name) const {
    for (size_t i = 0; i < heads_.size(); i++)
      if (heads_[i].name == name) return i;
    ADD_FAILURE() << name;
    return 0;
  }
  GgufFile file_;
  std::vector<TensorHead> heads_;
  std::vector<std::vector<std::byte>> data_;
};

std::vector<float> values_of(const StoredTensor& t) {
  const int64_t n = std::accumulate(t.shape.begin(), t.shape.end(), int64_t(1), std::multiplies<>());
  std::vector<float> values(static_cast<size_t>(n));
  get_codec(t.format).decode(t.bytes.data(), n, values.data());
  return values;
}

void expect_factors_in(const StoredTensor& got, const StoredTensor& nvfp4, const std::vector<float>& factors) {
  const std::vector<float> a = values_of(got), b = values_of(nvfp4);
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); i++) ASSERT_EQ(a[i], b[i] * factors[i * factors.size() / a.size()]) << got.name << " " << i;
}

class OddFiles : public testing::Test {
 protected:
  std::string error(const fs::path& from, const std::string& to, ConvertOptions options = {}) {
    return error_of([&] { convert_model(from, dir / to, options); });
  }
  test::TempDir dir;
};

// A factor is in the values as soon as they are stored in another format, and nowhere else then. f32 holds the products exactly.
TEST_F(OddFiles, FactorsOfNvfp4AreNotLost) {
  const std::string up = "blk.0.ffn_up";
  const std::vector<float> one = {0.37f};
  Changed plain("gguf_f32");
  plain.to_nvfp4(up, one);
  plain.write(dir / "plain.gguf");
  const auto source = Checkpoint::open(dir / "plain.gguf");

  ASSERT_EQ(error(dir / "plain.gguf", "f32.gguf", {.format = "f32"}), "");
  const auto f32 = Checkpoint::open(dir / "f32.gguf");
  EXPECT_FALSE(f32->find(up + ".scale"));
  expect_factors_in(f32->get(up + ".weight"), source->get(up + ".weight"), one);

  ASSERT_EQ(error(dir / "plain.gguf", "hf", {.format = "f32"}), "");
  const auto there = Checkpoint::open(dir / "hf");
  expect_factors_in(there->get("model.layers.0.mlp.up_proj.weight"), source->get(up + ".weight"), one);

  ASSERT_EQ(error(dir / "plain.gguf", "same.gguf"), "");  // what stays NVFP4 keeps its factor beside it
  const auto same = Checkpoint::open(dir / "same.gguf");
  EXPECT_EQ(same->get(up + ".weight").format, "nvfp4");
  EXPECT_EQ(values_of(same->get(up + ".scale")), one);
}

TEST_F(OddFiles, FactorsOfExpertsAreTheirOwn) {
  const std::string name = "blk.0.ffn_gate_exps";
  Changed experts("gguf_mixtral");
  const int64_t n = experts.head(name + ".weight").shape[0];
  std::vector<float> factors;
  for (int64_t i = 0; i < n; i++) factors.push_back(0.25f + 0.1f * float(i));
  experts.head(name + ".weight").shape.back() = 64;  // NVFP4's block
  experts.to_nvfp4(name, factors);
  experts.write(dir / "experts.gguf");
  const auto source = Checkpoint::open(dir / "experts.gguf");
  const StoredTensor& weight = source->get(name + ".weight");

  ASSERT_EQ(error(dir / "experts.gguf", "f32.gguf", {.format = "f32"}), "");
  expect_factors_in(Checkpoint::open(dir / "f32.gguf")->get(name + ".weight"), weight, factors);

  ASSERT_EQ(error(dir / "experts.gguf", "hf", {.format = "f32"}), "");
  const auto there = Checkpoint::open(dir / "hf");
  const std::vector<float> whole = values_of(weight);
  for (size_t e = 0; e < size_t(n); e++) {
    const auto got = values_of(there->get(fmt::format("model.layers.0.block_sparse_moe.experts.{}.w1.weight", e)));
    for (size_t i = 0; i < got.size(); i++) ASSERT_EQ(got[i], whole[e * got.size() + i] * factors[e]) << e << " " << i;
  }
}

TEST_F(OddFiles, NumbersOfNamesAreTheModels) {
  const std::vector<std::byte> norm(64 * 4), experts(5 * 64 * 4);
  Changed layer("gguf_f32");
  layer.add("blk.900000000.attn_norm.weight", "f32", {64}, norm);
  layer.write(dir / "layer.gguf");
  expect_says(error(dir / "layer.gguf", "hf"), {"blk.900000000.attn_norm.weight", "layer 900000000"});

  Changed stacked("gguf_f32");
  stacked.add("blk.0.ffn_gate_exps.weight", "f32", {5, 1, 64}, experts);
  stacked.write(dir / "stacked.gguf");
  expect_says(error(dir / "stacked.gguf", "hf"), {"blk.0.ffn_gate_exps.weight"});

  Changed many("gguf_mixtral");
  TensorHead& h = many.head("blk.0.ffn_up_exps.weight");
  h = tensor_head(h.name, h.format, {h.shape[0] * h.shape[1], 1, h.shape[2]});
  many.write(dir / "many.gguf");
  expect_says(error(dir / "many.gguf", "hf"), {"blk.0.ffn_up_exps.weight", "parts"});
}

// Gemma's queries are scaled by what their layer says.
TEST_F(OddFiles, NumbersOfNamesAreTheModelsInSafetensors) {
  const fs::path gemma = fs::path(MR_FIXTURES) / "models" / "gemma2";
  fs::copy(gemma, dir / "gemma");
  std::string bytes = test::read_file(dir / "gemma" / "model.safetensors");
  uint64_t length;
  std::memcpy(&length, bytes.data(), 8);
  Json header = Json::parse(bytes.substr(8, length));
  header["model.layers.800000000.self_attn.q_proj.weight"] = header.at("model.layers.0.self_attn.q_proj.weight");
  header.erase("model.layers.0.self_attn.q_proj.weight");
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  test::write_file(dir / "gemma" / "model.safetensors", test::Bytes().num(uint64_t(text.size())) + text + bytes.substr(8 + length));
  expect_says(error(dir / "gemma", "out.gguf"), {"model.layers.800000000.self_attn.q_proj.weight", "layer 800000000"});
}

// Every part is looked at before one is moved.
TEST_F(OddFiles, PartsReplaceNothing) {
  const ConvertOptions parts{.shard_bytes = 20000};
  ASSERT_EQ(error(model("gguf_f32"), "model.gguf", parts), "");
  std::vector<fs::path> names;
  for (auto& entry : fs::directory_iterator(dir.path())) names.push_back(entry.path());
  std::ranges::sort(names);
  ASSERT_GT(names.size(), 2u);
  for (size_t i = 1; i < names.size(); i++) fs::remove(names[i]);
  test::write_file(names[0], "of another");
  expect_says(error(model("gguf_f32"), "model.gguf", parts), {names[0].native(), "--force"});
  for (size_t i = 1; i < names.size(); i++) EXPECT_FALSE(fs::exists(names[i])) << names[i];

  ConvertOptions force = parts;
  force.force = true;
  ASSERT_EQ(error(model("gguf_f32"), "model.gguf", force), "");
  const std::string before = test::read_file(names[1]);
  force.format = "bf16";
  force.shard_bytes = 10000;  // as many parts of half the bytes
  expect_says(error(names[0], "model.gguf", force), {"the model itself"});
  EXPECT_EQ(test::read_file(names[1]), before);
}

}  // namespace
}  // namespace mr
