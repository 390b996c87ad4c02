// Absurd configurations: each is one sentence, in no time and no memory.
#include "model/validate.h"

#include <gtest/gtest.h>

#include <chrono>
#include <limits>

#include "core/error.h"
#include "model/arch/arch.h"
#include "model/rope.h"

namespace mr {
namespace {

Json llama() {
  return {{"model_type", "llama"},    {"hidden_size", 64},        {"intermediate_size", 128}, {"num_hidden_layers", 2},
          {"num_attention_heads", 4}, {"num_key_value_heads", 2}, {"vocab_size", 100},        {"max_position_embeddings", 256},
          {"rms_norm_eps", 1e-5},     {"rope_theta", 10000.0},    {"sliding_window", 64}};
}
Json mixtral() {
  Json j = llama();
  j.update({{"model_type", "mixtral"}, {"num_local_experts", 4}, {"num_experts_per_tok", 2}});
  return j;
}
Json mamba() {
  return {{"model_type", "mamba"}, {"hidden_size", 64}, {"num_hidden_layers", 2},
          {"vocab_size", 100},     {"state_size", 8},   {"conv_kernel", 4}};
}
Json mamba2() {
  return {{"model_type", "mamba2"}, {"hidden_size", 64}, {"num_hidden_layers", 2}, {"vocab_size", 100}, {"state_size", 8},
          {"conv_kernel", 4},       {"num_heads", 4},    {"head_dim", 32},         {"n_groups", 1}};
}
Json jamba() {
  Json j = llama();
  j.update({{"model_type", "jamba"},
            {"mamba_d_state", 8},
            {"mamba_d_conv", 4},
            {"attn_layer_period", 2},
            {"attn_layer_offset", 1},
            {"num_experts", 1}});
  return j;
}
Json gemma4() {
  Json j = llama();
  j.update({{"model_type", "gemma4_text"},
            {"head_dim", 16},
            {"global_head_dim", 16},
            {"hidden_size_per_layer_input", 8},
            {"layer_types", {"sliding_attention", "full_attention"}}});
  return j;
}
Json gemma3n() {
  Json j = gemma4();
  j.update({{"model_type", "gemma3n_text"}, {"num_kv_shared_layers", 0}});
  return j;
}
Json deepseek() {
  Json j = mixtral();
  j.update({{"model_type", "deepseek_v2"},
            {"kv_lora_rank", 16},
            {"qk_nope_head_dim", 8},
            {"qk_rope_head_dim", 8},
            {"v_head_dim", 8},
            {"n_routed_experts", 4},
            {"moe_intermediate_size", 32},
            {"n_shared_experts", 1}});
  return j;
}

Json lfm2() {
  Json j = llama();
  j.update({{"model_type", "lfm2"}, {"layer_types", {"conv", "full_attention"}}});
  return j;
}

std::string sentence_of(const Json& config) {
  try {
    ModelSpec spec = spec_from(config, "config.json");
    for (const RopeSpec& rope : spec.ropes) make_rope(rope);
    return "";
  } catch (const Error& e) {
    return e.what();
  }
}

TEST(Validate, PassesTheModelsThatTheOtherTestsSpoil) {
  for (const Json& config : {llama(), mixtral(), mamba(), mamba2(), jamba(), gemma4(), gemma3n(), deepseek(), lfm2()})
    EXPECT_EQ(sentence_of(config), "");
}

struct Absurd {
  Json base;
  Json change;
};

void expect_refused(const Json& base, const Json& change) {
  Json config = base;
  config.merge_patch(change);
  auto begin = std::chrono::steady_clock::now();
  std::string text = sentence_of(config);
  double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  EXPECT_NE(text, "") << change;
  EXPECT_NE(text.find("config.json"), std::string::npos) << text;
  EXPECT_EQ(text.find('\n'), std::string::npos) << text;
  EXPECT_LT(text.size(), 1000u) << text.substr(0, 200);
  EXPECT_LT(seconds, 2) << change;
}

TEST(Validate, RefusesSizesThatNoModelHas) {
  const int64_t huge = (int64_t(1) << 31) - 2;
  for (const char* field : {"head_dim", "hidden_size", "intermediate_size", "num_attention_heads", "vocab_size", "max_position_embeddings",
                            "num_hidden_layers", "sliding_window"}) {
    for (int64_t n : {huge, huge - 1, int64_t(1) << 62, int64_t(-1)}) expect_refused(llama(), {{field, n}});
    for (const Json& odd : {Json(1e300), Json("9"), Json::array({1}), Json::object({{"a", 1}}), Json(uint64_t(1) << 63), Json(true)})
      expect_refused(llama(), {{field, odd}});
  }
  for (const char* field : {"hidden_size", "num_hidden_layers", "vocab_size", "max_position_embeddings", "num_attention_heads", "head_dim"})
    expect_refused(llama(), {{field, 0}});
  expect_refused(llama(), {{"num_key_value_heads", 3}});
  expect_refused(llama(), {{"num_key_value_heads", 0}});
  expect_refused(llama(), {{"num_key_value_heads", huge}});
}

TEST(Validate, RefusesProductsThatOverflow) {
  const int64_t wide = 1 << 20, most = (int64_t(1) << 31) - 1;
  expect_refused(llama(), {{"num_attention_heads", wide}, {"num_key_value_heads", wide}, {"head_dim", 8192}});
  expect_refused(llama(), {{"num_attention_heads", 2048}, {"num_key_value_heads", 2048}, {"head_dim", 8192}, {"num_hidden_layers", 4096}});
  expect_refused(mixtral(), {{"num_local_experts", wide}, {"intermediate_size", 1 << 24}});
  expect_refused(mixtral(), {{"num_local_experts", most}});
  expect_refused(mixtral(), {{"num_experts_per_tok", 5}});
  expect_refused(mixtral(), {{"num_local_experts", wide}, {"intermediate_size", 16}});  // of weights that are counted one by one
  expect_refused(mixtral(), {{"num_local_experts", 65536}, {"intermediate_size", 16}, {"num_hidden_layers", 1000}});
  expect_refused(mamba(), {{"expand", most}});
  expect_refused(mamba(), {{"hidden_size", most}});
  expect_refused(mamba(), {{"state_size", most}});
  expect_refused(mamba(), {{"intermediate_size", 1 << 24}, {"state_size", wide}});
  expect_refused(mamba(), {{"conv_kernel", most}});
  expect_refused(mamba(), {{"time_step_rank", 0}});
  expect_refused(mamba2(), {{"num_heads", 65536}, {"head_dim", 65537}});
  expect_refused(mamba2(), {{"n_groups", most}});
  expect_refused(mamba2(), {{"state_size", most}});
  expect_refused(mamba2(), {{"num_heads", most}, {"head_dim", most}});
  expect_refused(jamba(), {{"mamba_expand", most}});
  expect_refused(jamba(), {{"mamba_expand", 0}});
  expect_refused(gemma4(), {{"num_kv_shared_layers", 1}, {"use_double_wide_mlp", true}, {"intermediate_size", most}});
  expect_refused(gemma4(), {{"hidden_size_per_layer_input", most}});
  expect_refused(deepseek(), {{"n_shared_experts", most}, {"moe_intermediate_size", most}});
  expect_refused(deepseek(), {{"kv_lora_rank", most}});
  expect_refused(deepseek(), {{"qk_rope_head_dim", most - 1}});
  for (int64_t width : {int64_t(0), int64_t(1), most}) expect_refused(lfm2(), {{"conv_L_cache", width}});
  for (double factor : {1e30, -1.0, 1e-9}) expect_refused(lfm2(), {{"block_ffn_dim_multiplier", factor}});
  for (int64_t multiple : {most, int64_t(0)}) expect_refused(lfm2(), {{"block_multiple_of", multiple}});
}

TEST(Validate, RefusesStreamsRanksAndSharesThatGemma3nCannotHave) {
  const int64_t most = (int64_t(1) << 31) - 1;
  expect_refused(gemma3n(), {{"vocab_size_per_layer_input", most}});
  expect_refused(gemma3n(), {{"vocab_size_per_layer_input", 0}});
  for (int64_t streams : {int64_t(0), int64_t(65), most}) expect_refused(gemma3n(), {{"altup_num_inputs", streams}});
  for (int64_t active : {int64_t(4), most}) expect_refused(gemma3n(), {{"altup_active_idx", active}});
  expect_refused(gemma3n(), {{"laurel_rank", most}});
  for (double sparsity : {-0.1, 1.0, 1e30}) expect_refused(gemma3n(), {{"activation_sparsity_pattern", Json::array({0.0, sparsity})}});
  expect_refused(gemma3n(), {{"activation_sparsity_pattern", Json::array({0.5})}});
  expect_refused(gemma3n(), {{"intermediate_size", Json::array({64})}});
  expect_refused(gemma3n(), {{"intermediate_size", Json::array({64, 0})}});
  for (int shared : {1, 2}) expect_refused(gemma3n(), {{"num_kv_shared_layers", shared}});  // of two layers that are not alike
}

TEST(Validate, RefusesRopesThatGiveNoNumbers) {
  auto scaled = [](const char* type, Json more) {
    more.update({{"rope_type", type}});
    if (!more.contains("original_max_position_embeddings")) more["original_max_position_embeddings"] = 64;
    return Json{{"rope_scaling", more}};
  };
  for (const char* type : {"linear", "dynamic", "llama3", "yarn", "proportional"})
    for (const Json& factor : {Json(1e10), Json(-1.0), Json(0.0), Json(1e300), Json(-1e300), Json(std::numeric_limits<double>::quiet_NaN()),
                               Json(std::numeric_limits<double>::infinity()), Json("2"), Json(1e-30)})
      expect_refused(llama(), scaled(type, {{"factor", factor}}));
  expect_refused(llama(), scaled("llama3", {{"factor", 8.0}, {"low_freq_factor", 4.0}, {"high_freq_factor", 4.0}}));
  expect_refused(llama(), scaled("llama3", {{"factor", 8.0}, {"low_freq_factor", 0.0}}));
  expect_refused(llama(), scaled("yarn", {{"factor", 8.0}, {"beta_fast", -1.0}}));
  expect_refused(llama(), scaled("yarn", {{"factor", 8.0}, {"mscale", -20.0}, {"mscale_all_dim", -20.0}}));
  expect_refused(llama(), scaled("yarn", {{"factor", 8.0}, {"attention_factor", -3.0}}));
  for (double theta : {0.0, -5.0, 1.0, 1e30, 1e300}) expect_refused(llama(), {{"rope_theta", theta}});
  for (double part : {1e300, -1.0, 0.0, 1.5, 1e-9}) expect_refused(llama(), {{"partial_rotary_factor", part}});
  std::vector<double> zeros(8, 0.0), many(100'000, 1.0);
  expect_refused(llama(), scaled("longrope", {{"short_factor", zeros}, {"long_factor", zeros}}));
  expect_refused(llama(), scaled("linear", {{"factor", 2.0}, {"short_factor", many}}));
  std::vector<double> ones(8, 1.0);
  expect_refused(
      llama(),
      scaled("longrope", {{"short_factor", ones}, {"long_factor", ones}, {"factor", 4.0}, {"original_max_position_embeddings", 1}}));
}

TEST(Validate, RefusesScalesThatAreNoNumbers) {
  for (const Json& eps : {Json(0.0), Json(-1e-5), Json(1e300), Json(std::numeric_limits<double>::quiet_NaN()), Json(5.0)})
    expect_refused(llama(), {{"rms_norm_eps", eps}});
  for (double scalar : {0.0, -256.0, 1e300}) expect_refused(gemma4(), {{"model_type", "gemma2"}, {"query_pre_attn_scalar", scalar}});
  expect_refused(gemma4(), {{"model_type", "gemma2"}, {"attn_logit_softcapping", -1.0}});
  expect_refused(gemma4(), {{"model_type", "gemma2"}, {"final_logit_softcapping", 1e30}});
  expect_refused(mamba2(), {{"time_step_limit", {2.0, 1.0}}});
  expect_refused(mamba2(), {{"time_step_limit", {-1e300, 1e300}}});
}

// Whatever a family makes of a file, a layer reads keys that were stored before, in the shape in which they lie there.
TEST(Validate, RefusesKeysThatAreNotThere) {
  auto refused = [](auto spoil) {
    Json config = llama();
    config["num_hidden_layers"] = 4;
    ModelSpec spec = spec_from(config, "config.json");
    std::vector<AttentionSpec*> layers;
    for (LayerSpec& layer : spec.layers) layers.push_back(&std::get<AttentionSpec>(layer.mixer));
    layers[2]->kv_owner = 1;
    spoil(spec, layers);
    try {
      validate(spec, "config.json");
      return std::string();
    } catch (const Error& e) {
      return std::string(e.what());
    }
  };
  using Layers = std::vector<AttentionSpec*>;
  EXPECT_EQ(refused([](ModelSpec&, Layers&) {}), "");
  EXPECT_EQ(refused([](ModelSpec&, Layers& a) { a[2]->window = a[1]->window / 2; }), "");
  const int most = std::numeric_limits<int>::max();
  for (int owner : {2, 3, 4, 5, 4096, most, -2, -most - 1})  // itself, later ones, none
    EXPECT_NE(refused([&](ModelSpec&, Layers& a) { a[2]->kv_owner = owner; }), "") << owner;
  EXPECT_NE(refused([](ModelSpec&, Layers& a) { a[0]->kv_owner = 0; }), "");
  EXPECT_NE(refused([](ModelSpec&, Layers& a) { a[3]->kv_owner = 2; }), "");  // which reads another's
  EXPECT_NE(refused([](ModelSpec&, Layers& a) { a[2]->kv_heads = 4; }), "");
  EXPECT_NE(refused([](ModelSpec&, Layers& a) { a[2]->head_dim *= 2; }), "");
  EXPECT_NE(refused([](ModelSpec&, Layers& a) { a[2]->window = 0; }), "");
  EXPECT_NE(refused([](ModelSpec&, Layers& a) { a[2]->window = a[1]->window + 1; }), "");
  EXPECT_NE(refused([](ModelSpec& spec, Layers&) { spec.layers[1].mixer = GatedConvSpec{.dim = spec.dim, .conv = 3}; }), "");
}

TEST(Validate, CutsWhatItShowsOfAFile) {
  expect_refused(llama(), {{"head_dim", std::string(1 << 20, 'x')}});
  expect_refused(llama(), {{"hidden_act", "a\nb\x1b[31m"}});
  Json list = Json::array();
  for (int i = 0; i < 100'000; i++) list.push_back(i);
  expect_refused(llama(), {{"head_dim", list}});
  expect_refused(llama(), {{"eos_token_id", list}});
  EXPECT_THROW(spec_from({{"model_type", std::string(1 << 20, '\n')}}, "config.json"), Error);
}

}  // namespace
}  // namespace mr
