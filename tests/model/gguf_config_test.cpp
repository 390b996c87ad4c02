// What a GGUF file's metadata says of a model, and what readers must know that it does not say.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <variant>

#include "io/files.h"
#include "model/arch/arch.h"
#include "quant/codec.h"

namespace mr {
namespace {

using Value = std::variant<uint32_t, float, std::string, std::vector<uint32_t>>;
using Metadata = std::map<std::string, Value>;

// A file with this metadata (keys of the architecture without its name) and an embedding of 8 tokens.
class GgufConfig : public testing::Test {
 protected:
  ModelSpec spec(const std::string& arch, const Metadata& metadata) {
    test::Bytes bytes;
    bytes.head(1, metadata.size() + 1).key("general.architecture", 8).str(arch);
    for (const auto& [name, value] : metadata) add(bytes, arch + "." + name, value);
    bytes.info("token_embd.weight", {64, 8}, 0, 0).pad(32);
    bytes.append(64 * 8 * 4, '\0');
    test::write_file(dir_ / "model.gguf", bytes);
    return describe(*Checkpoint::open(dir_ / "model.gguf")).spec;
  }
  std::string refusal(const std::string& arch, const Metadata& metadata) {
    return test::error_of([&] { spec(arch, metadata); });
  }

  static Metadata with(Metadata more, uint32_t layers = 8) {
    more.insert({{"block_count", layers},
                 {"context_length", 128u},
                 {"embedding_length", 64u},
                 {"feed_forward_length", 96u},
                 {"attention.head_count", 4u},
                 {"attention.head_count_kv", 2u},
                 {"attention.key_length", 32u},
                 {"attention.layer_norm_rms_epsilon", 1e-6f}});
    return more;
  }
  static const AttentionSpec& attention(const ModelSpec& spec, size_t layer) {
    return std::get<AttentionSpec>(spec.layers.at(layer).mixer);
  }

 private:
  static void add(test::Bytes& bytes, const std::string& key, const Value& value) {
    constexpr uint32_t kU32 = 4, kF32 = 6, kString = 8, kArray = 9;
    if (auto* n = std::get_if<uint32_t>(&value)) bytes.key(key, kU32).num(*n);
    if (auto* f = std::get_if<float>(&value)) bytes.key(key, kF32).num(*f);
    if (auto* s = std::get_if<std::string>(&value)) bytes.key(key, kString).str(*s);
    if (auto* list = std::get_if<std::vector<uint32_t>>(&value)) {
      bytes.key(key, kArray).num(kU32).num(uint64_t(list->size()));
      for (uint32_t n : *list) bytes.num(n);
    }
  }
  test::TempDir dir_;
};

TEST_F(GgufConfig, SmolLm3HasNoPositionsInEveryFourthLayer) {
  const ModelSpec model = spec("smollm3", with({{"rope.freq_base", 5e6f}}));
  for (size_t i = 0; i < model.layers.size(); i++) EXPECT_EQ(attention(model, i).rope, (i + 1) % 4 == 0 ? -1 : 0) << i;
}

TEST_F(GgufConfig, GemmaScalesByTheHeadExceptTheLargest) {
  for (auto [arch, largest] : {std::pair{"gemma2", 46u}, {"gemma3", 62u}}) {
    EXPECT_FLOAT_EQ(attention(spec(arch, with({}, 26)), 0).scale, 1 / std::sqrt(32.0f)) << arch;
    EXPECT_FLOAT_EQ(attention(spec(arch, with({}, largest)), 0).scale, 1 / std::sqrt(16.0f)) << arch;
  }
}

TEST_F(GgufConfig, Gemma3ScalesTheRopeOfLayersThatSeeEverything) {
  const ModelSpec model = spec(
      "gemma3",
      with({{"attention.sliding_window", 16u}, {"rope.freq_base", 1e6f}, {"rope.scaling.type", "linear"}, {"rope.scaling.factor", 8.0f}},
           12));
  for (size_t i = 0; i < model.layers.size(); i++) {
    const bool global = (i + 1) % 6 == 0;
    const RopeSpec& rope = model.ropes.at(size_t(attention(model, i).rope));
    EXPECT_EQ(attention(model, i).window, global ? 0 : 16) << i;
    EXPECT_EQ(rope.theta, global ? 1e6f : 1e4f) << i;
    EXPECT_EQ(rope.scaling, global ? RopeSpec::Scaling::linear : RopeSpec::Scaling::none) << i;
  }
  EXPECT_EQ(model.norm.offset, 0);  // stored with its 1
}

TEST_F(GgufConfig, WindowsFollowAListOrAPeriod) {
  auto windows = [&](Value pattern) {
    std::string seen;
    const ModelSpec model = spec("gemma2", with({{"attention.sliding_window", 16u}, {"attention.sliding_window_pattern", pattern}}, 6));
    for (size_t i = 0; i < 6; i++) seen += attention(model, i).window ? 'w' : '.';
    return seen;
  };
  EXPECT_EQ(windows(3u), "ww.ww.");
  EXPECT_EQ(windows(std::vector<uint32_t>{1, 0, 0, 1, 1, 0}), "w..ww.");
}

TEST_F(GgufConfig, RefusalsSayWhatAndWhere) {
  test::expect_says(refusal("gpt9", with({})), {"'gpt9'", "known are", "qwen3moe"});
  Metadata short_list = with({}, 3), uneven = with({}, 3);
  short_list["attention.head_count_kv"] = std::vector<uint32_t>{2, 0};
  uneven["attention.head_count_kv"] = std::vector<uint32_t>{2, 0, 4};
  test::expect_says(refusal("lfm2", short_list), {"model.gguf", "2 entries for 3 layers"});
  test::expect_says(refusal("lfm2", uneven), {"model.gguf", "2", "4", "heads"});
  test::expect_says(refusal("gemma2", with({{"attention.sliding_window_pattern", "often"}})), {"model.gguf", "sliding_window_pattern"});
  test::expect_says(
      refusal("mamba2", {{"block_count", 1u}, {"embedding_length", 64u}, {"ssm.inner_size", 100u}, {"ssm.time_step_rank", 3u}}),
      {"model.gguf", "100", "3 heads"});
}

// Files and codecs speak of the same blocks.
TEST(StoredFormats, AgreeWithTheCodecs) {
  for (const Codec* codec : codecs()) {
    const auto formats = stored_formats();
    auto found = std::ranges::find(formats, codec->name, &StoredFormat::name);
    ASSERT_NE(found, formats.end()) << codec->name;
    EXPECT_EQ(found->elements, codec->block) << codec->name;
    EXPECT_EQ(found->bytes, codec->block_bytes) << codec->name;
  }
}

}  // namespace
}  // namespace mr
