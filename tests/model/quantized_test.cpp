// Weights of several tensors: decoded as the libraries that own their formats decode them (tests/oracle/quantized.py), and refused with a
// sentence where a file is broken.
#include "model/quantized.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "backend/cpu/panels.h"
#include "core/thread_pool.h"
#include "io/files.h"
#include "model/arch/arch.h"
#include "model/loader.h"
#include "model/model.h"

namespace mr {
namespace {

using test::error_of;
using test::expect_says;
namespace fs = std::filesystem;

constexpr const char* kKey = "model.layers.0.self_attn.k_proj";
constexpr const char* kDown = "model.layers.0.mlp.down_proj";

fs::path fixture(const std::string& name) { return fs::path(MR_FIXTURES) / "models" / name; }

std::vector<std::string> quantized_fixtures() {
  std::vector<std::string> names;
  for (auto& entry : fs::directory_iterator(fs::path(MR_FIXTURES) / "models"))
    if (entry.path().filename().native().starts_with("quant_")) names.push_back(entry.path().filename());
  std::ranges::sort(names);
  return names;
}

StoredWeight stored(const Checkpoint& files, const std::string& module, int64_t out, int64_t in) {
  const Quantization quantization(files);
  auto found = find_quantized(files, quantization, module, out, in, true);
  EXPECT_TRUE(found) << module;
  StoredWeight w(*found->codec, in);
  w.add(out, found->beside);
  w.parts.back().factor = found->factor;
  return w;
}

class QuantizedFixture : public testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Checkpoint> files = Checkpoint::open(fixture(GetParam()));
  StoredWeight key = stored(*files, kKey, 32, 64), down = stored(*files, kDown, 64, 192);
};

TEST_P(QuantizedFixture, DecodesAsItsLibraryDoes) {
  const std::string bytes = test::read_file(fixture(GetParam()) / "decoded.f32");
  ASSERT_EQ(bytes.size(), (32 * 64 + 16 * 192) * 4u);
  auto at = reinterpret_cast<const float*>(bytes.data());
  for (auto [w, rows] : {std::pair{&key, 32}, {&down, 16}})
    for (int r = 0; r < rows; r++, at += w->in) {
      std::vector<float> got(size_t(w->in), NAN);
      w->decode(r, 0, w->in, got.data());
      for (int64_t k = 0; k < w->in; k++) ASSERT_EQ(got[size_t(k)], at[k]) << w->codec->name << ", row " << r << ", input " << k;
    }
}

// A tile is part of its row, wherever it begins.
TEST_P(QuantizedFixture, TilesAreTheirPartOfARow) {
  std::vector<float> row(192), tile(192);
  for (int64_t r : {0, 17, 63}) {
    down.decode(r, 0, 192, row.data());
    for (auto [first, n] : {std::pair{0, 1}, {5, 30}, {63, 66}, {128, 64}, {191, 1}}) {
      down.decode(r, first, n, tile.data());
      for (int i = 0; i < n; i++) ASSERT_EQ(tile[size_t(i)], row[size_t(first + i)]) << down.codec->name << " " << first << " + " << i;
    }
  }
}

// What layouts pack: codes, scale, zero and minimum of a block give the block's values.
TEST_P(QuantizedFixture, CodesMakeTheValues) {
  if (!down.codec->grid.bits) GTEST_SKIP() << "blocks do not share a scale";
  const int64_t block = down.codec->block;
  std::vector<float> want(static_cast<size_t>(block)), got(static_cast<size_t>(block));
  for (int64_t r = 0; r < 64; r++)
    for (int64_t k = 0; k < 192; k += block) {
      BlockCodes codes;
      down.codes(r, k, codes);
      values_of(down.codec->grid, int(block), codes, got.data());
      down.decode(r, k, block, want.data());
      for (int64_t i = 0; i < block; i++) ASSERT_EQ(got[size_t(i)] * down.parts[0].factor, want[size_t(i)]);
    }
}

// Fused as q, k and v are, in the CPU's layout.
TEST_P(QuantizedFixture, TheCpuKeepsTheBits) {
  StoredWeight both = down;
  both.parts.push_back(down.parts[0]);
  for (int64_t r = 0; r < 64; r++) both.parts[1].order.push_back(r * 5 % 64);
  ThreadPool pool(2);
  WeightStore store;
  const Weight packed = pack(both, store, pool);
  std::vector<float> want(192), got(128 * 192);
  packed.decode(0, 128, got.data());
  for (int64_t r = 0; r < 128; r++) {
    down.decode(r < 64 ? r : (r - 64) * 5 % 64, 0, 192, want.data());
    for (size_t k = 0; k < 192; k++) ASSERT_EQ(got[size_t(r) * 192 + k], want[k]) << packed.layout->name << ", row " << r;
  }
}

INSTANTIATE_TEST_SUITE_P(All, QuantizedFixture, testing::ValuesIn(quantized_fixtures()), [](const auto& info) { return info.param; });

TEST(Quantized, FormatsAreAmongTheFixtures) { EXPECT_GE(quantized_fixtures().size(), 19u); }

// A fixture whose files are changed before they are opened.
class Broken {
 public:
  explicit Broken(const std::string& name) {
    for (const char* file : {"config.json", "model.safetensors"}) fs::copy_file(fixture(name) / file, dir_ / file);
    const std::string bytes = test::read_file(dir_ / "model.safetensors");
    uint64_t length;
    std::memcpy(&length, bytes.data(), 8);
    header_ = Json::parse(bytes.substr(8, length));
    data_ = bytes.substr(8 + length);
  }
  Broken& config(const Json& changes) {
    Json config = Json::parse(test::read_file(dir_ / "config.json"));
    config["quantization_config"].update(changes);
    test::write_file(dir_ / "config.json", config.dump());
    return *this;
  }
  template <class T>
  Broken& value(const std::string& tensor, size_t i, T value) {
    std::memcpy(data_.data() + header_.at(tensor)["data_offsets"][0].get<size_t>() + i * sizeof(T), &value, sizeof(T));
    return *this;
  }
  Broken& shape(const std::string& tensor, const Json& shape) {
    header_.at(tensor)["shape"] = shape;
    return *this;
  }
  Broken& rename(const std::string& tensor, const std::string& name) {
    header_[name] = header_.at(tensor);
    header_.erase(tensor);
    return *this;
  }
  std::string error() {
    std::string header = header_.dump();
    header.resize((header.size() + 7) / 8 * 8, ' ');
    test::write_file(dir_ / "model.safetensors", test::Bytes().num(uint64_t(header.size())) + header + data_);
    return error_of([&] {
      auto files = Checkpoint::open(dir_.path());
      Model::load(*files, *make_ref_backend(), {});
    });
  }
  const std::string file() const { return (dir_ / "model.safetensors").native(); }

 private:
  test::TempDir dir_;
  Json header_;
  std::string data_;
};

TEST(Quantized, FixturesLoadUnbroken) { EXPECT_EQ(Broken("quant_gptq").error(), ""); }

TEST(Quantized, AScaleMustBeANumber) {
  const std::string scales = std::string(kKey) + ".scales";
  Broken b("quant_awq");
  expect_says(b.value<uint16_t>(scales, 9, 0x7e00).error(), {scales, b.file(), "nan", "at 9"});
  Broken e8m0("quant_mxfp4");
  expect_says(e8m0.value<uint8_t>(std::string(kKey) + ".weight_scale", 5, 255).error(), {"weight_scale", e8m0.file(), "nan", "at 5"});
  Broken outer("quant_nvfp4");
  expect_says(outer.value<float>(std::string(kKey) + ".weight_global_scale", 0, 0).error(), {"weight_global_scale", outer.file(), "is 0"});
}

TEST(Quantized, GroupsMustDivideTheInputs) {
  expect_says(Broken("quant_awq").config({{"group_size", 48}}).error(), {"q_proj", "groups of 48", "64"});
  expect_says(Broken("quant_awq").config({{"group_size", 0}}).error(), {"'group_size' is 0"});
}

TEST(Quantized, GroupNumbersMustBeGroups) {
  const std::string numbers = std::string(kKey) + ".g_idx";
  Broken b("quant_gptq");
  expect_says(b.value<int32_t>(numbers, 7, 2).error(), {numbers, b.file(), "input 7", "group 2", "2 groups"});
  Broken negative("quant_gptq");
  expect_says(negative.value<int32_t>(numbers, 0, -1).error(), {"group -1"});
}

TEST(Quantized, ShapesMustAgree) {
  const std::string packed = std::string(kKey) + ".weight_packed", shape = std::string(kKey) + ".weight_shape";
  Broken b("quant_w4a16");
  expect_says(b.shape(packed, {16, 16}).error(), {packed, b.file(), "[16, 16]", "[32, 8]"});
  Broken said("quant_w4a16");
  expect_says(said.value<int64_t>(shape, 1, 65).error(), {shape, said.file(), "[32, 65]", "[32, 64]"});
  Broken block("quant_fp8_block");
  expect_says(block.config({{"weight_block_size", {64, 64}}}).error(), {"weight_scale_inv", block.file(), "[3, 1]"});
}

TEST(Quantized, ScalesMustBeThere) {
  expect_says(Broken("quant_gptq").rename(std::string(kKey) + ".scales", "other").error(), {std::string(kKey) + ".scales", "gptq3"});
  expect_says(Broken("quant_fp8_dynamic").rename(std::string(kKey) + ".weight_scale", "other").error(), {"weight_scale", "fp8"});
  expect_says(Broken("quant_bnb_nf4").rename(std::string(kKey) + ".weight.nested_absmax", "other").error(), {"nested_absmax"});
  expect_says(Broken("quant_mlx").rename(std::string(kKey) + ".biases", "other").error(), {"biases", "mlx3"});
}

TEST(Quantized, ConfigurationsThatAreNotKnownAreNamed) {
  for (auto [method, name] :
       {std::pair{"exl3", "EXL3"}, {"torchao", "torchao"}, {"quark", "Quark"}, {"aqlm", "AQLM"}, {"hqq", "HQQ"}, {"new", "new"}})
    expect_says(Broken("quant_awq").config({{"quant_method", method}}).error(), {name, "GPTQ", "compressed-tensors", "GGUF"});
  expect_says(Broken("quant_awq").config({{"version", "gemv"}}).error(), {"gemv", "'gemm'"});
  expect_says(Broken("quant_awq").config({{"bits", 5}}).error(), {"'bits' is 5", "4"});
  expect_says(Broken("quant_gptq").config({{"dynamic", {{"+:(", Json::object()}}}}).error(), {"("});
  expect_says(Broken("quant_auto_round").config({{"packing_format", "auto_round:other"}}).error(), {"auto_round:other", "auto_gptq"});
  expect_says(Broken("quant_w4a16").config({{"config_groups", Json::object()}}).error(), {"config_groups"});
}

// A group that names a module goes before one that names its class, whatever their order.
TEST(Quantized, TheMostExactTargetHolds) {
  auto files = Checkpoint::open(fixture("quant_ct_mixed"));
  const Quantization q(*files);
  EXPECT_EQ(q.of("model.layers.1.self_attn.o_proj").bits, 4);
  EXPECT_TRUE(q.of("model.layers.1.self_attn.o_proj").zeros);
  EXPECT_EQ(q.of("model.layers.1.mlp.up_proj").bits, 8);
  auto dynamic = Checkpoint::open(fixture("quant_gptq"));
  EXPECT_EQ(Quantization(*dynamic).of("model.layers.1.mlp.gate_proj").bits, 2);
  EXPECT_EQ(Quantization(*dynamic).of("model.layers.1.mlp.up_proj").bits, 4);
}

// A scale that is left over beside dynamic activations is not theirs; static ones need theirs, above 0.
TEST(Quantized, AStoredInputScaleIsWhatTheConfigurationSays) {
  const std::string scale = std::string(kKey) + ".input_scale";
  expect_says(Broken("quant_fp8_static").rename(scale, "other").error(), {scale, "fp8"});
  expect_says(Broken("quant_fp8_static").value<float>(scale, 0, -1).error(), {scale, "-1"});
  Json groups = Checkpoint::open(fixture("quant_fp8_static"))->quantization().at("config_groups");
  Json& activations = groups["group_0"]["input_activations"];
  activations["dynamic"] = true;
  activations["strategy"] = "token";
  EXPECT_EQ(Broken("quant_fp8_static").config({{"config_groups", groups}}).value<float>(scale, 0, NAN).error(), "");
}

TEST(Quantized, TheThresholdOfOutliersIsAMagnitude) {
  for (double threshold : {-1.0, 1e-60, 1e60})
    expect_says(Broken("quant_bnb_int8").config({{"llm_int8_threshold", threshold}}).error(), {"llm_int8_threshold"});
  EXPECT_EQ(Broken("quant_bnb_int8").config({{"llm_int8_threshold", 0}}).error(), "");
  // Without outliers a row is still scaled to 127, as bitsandbytes has it.
  const float x[2] = {254, -2};
  float y[2];
  round_activations({.to = ActivationRounding::To::integer, .outliers = std::numeric_limits<float>::infinity()}, x, 2, y);
  EXPECT_EQ(y[0], 254);
  EXPECT_EQ(y[1], -2);
}

TEST(Quantized, NestedScalesAreNumbers) {
  const std::string map = std::string(kKey) + ".weight.nested_quant_map";
  Broken b("quant_bnb_nf4");
  expect_says(b.value<float>(map, 3, std::numeric_limits<float>::infinity()).error(), {map, b.file(), "inf", "at 3"});
  Broken tiny("quant_nvfp4");  // which divides
  expect_says(tiny.value<float>(std::string(kKey) + ".weight_global_scale", 0, 1e-42f).error(), {"weight_global_scale", tiny.file()});
}

TEST(Quantized, BlocksAreSizes) {
  const int64_t most = std::numeric_limits<int64_t>::max();
  for (const Json& block : {Json{128, most}, Json{most, 128}, Json{128, 0}, Json{128}})
    expect_says(Broken("quant_fp8_block").config({{"weight_block_size", block}}).error(), {"weight_block_size"});
}

TEST(Quantized, PatternsAreBounded) {
  Json many = Json::object(), slow = Json::object();
  for (int i = 0; i < 1000; i++) many[fmt::format("+:layers.{}.", i)] = Json::object();
  expect_says(Broken("quant_gptq").config({{"dynamic", many}}).error(), {"256 patterns"});
  expect_says(Broken("quant_gptq").config({{"dynamic", {{std::string(2000, 'a'), Json::object()}}}}).error(), {"2003 bytes", "1024"});
  slow["+:(\\w*\\.*)*(\\w*\\.*)*(\\w*\\.*)*[!?]"] = Json::object();
  expect_says(Broken("quant_gptq").config({{"dynamic", slow}}).error(), {"pattern"});
}

// Codecs are the same object for equal formats, so that weights which are read alike are one product.
TEST(Quantized, EqualFormatsShareACodec) {
  const Grouped form{.codes = {.bits = 4}, .group = 32, .grid = {.bits = 4, .offset = 8}};
  const Codec& codec = grouped_codec("int4 g32", form, 64);
  EXPECT_EQ(&grouped_codec("int4 g32", form, 64), &codec);
  EXPECT_NE(&grouped_codec("int4 g32", form, 128), &codec);
  EXPECT_EQ(codec.grid.group, 32);
}

TEST(Quantized, QueriesKeysAndValuesAreOneProduct) {
  for (const char* name : {"quant_awq", "quant_w4a16", "quant_w8a8", "quant_fp8_dynamic", "quant_bnb_int8", "quant_nvfp4", "quant_mxfp4"}) {
    auto files = Checkpoint::open(fixture(name));
    auto backend = make_ref_backend();
    const auto model = Model::load(*files, *backend, {});
    int products = 0;
    for (const Op& op : model->program().whole.ops)
      if (op.layer == 0 && op.name == "q+k+v") products++;
    EXPECT_EQ(products, 1) << name;
  }
}

TEST(Quantized, ActivationsAreRoundedByTheirRowAlone) {
  const float x[4] = {1, -0.3f, 0.2f, -0.7f};
  float y[4];
  round_activations({.to = ActivationRounding::To::integer}, x, 4, y);
  for (int i = 0; i < 4; i++) EXPECT_NEAR(y[i], x[i], 0.51f / 127.5f);
  EXPECT_FLOAT_EQ(y[0], 127 / 127.5f);  // 128 is no code
  round_activations({.to = ActivationRounding::To::integer, .outliers = 0.9f}, x, 4, y);
  EXPECT_EQ(y[0], 1);  // an outlier
  EXPECT_EQ(y[3], -0.7f);
  EXPECT_FLOAT_EQ(y[1], std::nearbyint(-0.3f * 127 / 0.7f) * 0.7f / 127);
  round_activations({.to = ActivationRounding::To::e4m3, .scale = 1}, x, 4, y);
  EXPECT_EQ(y[0], 1);
  EXPECT_EQ(y[1], -0.3125f);
  EXPECT_EQ(y[2], 0.203125f);
  EXPECT_EQ(y[3], -0.6875f);
  const float large[2] = {1000, 1e-9f};
  round_activations({.to = ActivationRounding::To::e4m3, .scale = 1}, large, 2, y);
  EXPECT_EQ(y[0], 448);
  EXPECT_EQ(y[1], 0);
  const float odd[2] = {INFINITY, 1};
  round_activations({.to = ActivationRounding::To::integer}, odd, 2, y);
  EXPECT_TRUE(std::isnan(y[0]) && std::isnan(y[1]));
}

}  // namespace
}  // namespace mr
