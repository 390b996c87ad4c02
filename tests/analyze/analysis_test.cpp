// The arithmetic against published numbers; the state against what the engine's mixers declare; what fits, and what-ifs.
#include "analyze/analysis.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "analyze/report.h"
#include "core/error.h"
#include "model/arch/arch.h"
#include "model/model.h"

namespace mr {
namespace {

namespace fs = std::filesystem;

Question question(const char* preset, const char* chip) {
  Question q;
  q.subject = subject_of(*find_preset(preset));
  q.on.chip = chip_named(chip);
  return q;
}

struct Printed {
  int batch;
  double gigabytes, milliseconds, tokens_per_s;
  bool fits;
};

// To the digits that the example prints.
void expect_rows(const Analysis& a, const std::vector<Printed>& printed) {
  ASSERT_EQ(a.rows.size(), printed.size());
  for (size_t i = 0; i < printed.size(); i++) {
    const AnalysisRow& r = a.rows[i];
    const Printed& p = printed[i];
    EXPECT_EQ(r.batch, p.batch);
    EXPECT_NEAR(r.memory_bytes / 1e9, p.gigabytes, p.gigabytes > 100 ? 0.05 : 0.005) << p.batch;
    EXPECT_NEAR(r.latency_s * 1e3, p.milliseconds, 0.005) << p.batch;
    EXPECT_NEAR(r.tokens_per_s, p.tokens_per_s, p.tokens_per_s < 1000 ? 0.05 : 0.5) << p.batch;
    EXPECT_EQ(r.fits, p.fits) << p.batch;
  }
}

TEST(Classic, Llama2Of13BillionOnAnH100) {
  Question q = question("llama-2-13b", "h100");
  Analysis a = analyze(q);
  EXPECT_EQ(a.parameters, 13'015'449'600);
  EXPECT_EQ(a.parameters_with_norms, 13'015'864'320);
  EXPECT_EQ(a.rows[0].memory_bytes, 2.0 * 13'015'449'600 + 1024.0 * 40 * 128 * 40 * 2 * 2);
  expect_rows(
      a, {{1, 26.87, 8.02, 124.7, true}, {16, 39.45, 11.78, 1359, true}, {64, 79.72, 23.80, 2689, true}, {256, 240.8, 71.87, 3562, false}});
  EXPECT_NEAR(q.on.chip.ratio(), 295, 0.5);
  EXPECT_NEAR(chip_named("a100").ratio(), 153, 0.5);
}

TEST(Classic, WithEightKeyValueHeads) {
  Question q = question("llama-2-13b", "h100");
  q.subject.spec = apply({.kv_heads = 8}, q.subject.spec);
  q.batches = {64, 256};
  expect_rows(analyze(q), {{64, 33.41, 9.97, 6417, true}, {256, 65.63, 19.59, 13068, true}});
}

// What a step really moves: all weights but the embedding table, norms, activations, the state read once and written by one token.
TEST(Classic, AStepReadsNoEmbeddingTable) {
  Question q = question("llama-2-13b", "h100");
  q.batches = {1};
  AnalysisRow r = analyze(q).rows[0];
  double most = 2 * (13'015'449'600.0 - 32000.0 * 5120) + r.state_bytes_per_sequence;
  EXPECT_GT(r.step.bytes, most);
  EXPECT_LT(r.step.bytes, most * 1.001);
  EXPECT_LT(r.step.bytes, r.memory_bytes);
  EXPECT_EQ(r.step.bound, Roof::memory);
  EXPECT_NEAR(r.step.seconds, r.step.bytes / 3.35e12, 1e-3 * r.step.seconds);
}

TEST(Parameters, OfPublishedModels) {
  auto all = [](const char* name) { return double(parameters(spec_of(*find_preset(name)))); };
  auto active = [](const char* name) { return double(active_parameters(spec_of(*find_preset(name)))); };
  EXPECT_EQ(all("smollm2-135m"), 134'515'008);
  EXPECT_EQ(all("llama-2-7b"), 6'738'415'616);
  EXPECT_EQ(all("llama-2-70b"), 68'976'648'192);
  EXPECT_EQ(all("llama-3.1-8b"), 8'030'261'248);
  EXPECT_EQ(all("llama-3.1-70b"), 70'553'706'496);
  EXPECT_EQ(all("llama-3.1-405b"), 405'853'388'800);
  EXPECT_EQ(all("mistral-7b"), 7'241'732'096);
  EXPECT_EQ(all("mixtral-8x7b"), 46'702'792'704);
  EXPECT_EQ(all("qwen2.5-7b"), 7'615'616'512);
  EXPECT_EQ(all("qwen3-8b"), 8'190'735'360);
  EXPECT_EQ(all("gemma-2-9b"), 9'241'705'984);
  EXPECT_EQ(all("deepseek-v2"), 235'741'434'880);
  EXPECT_NEAR(active("deepseek-v2") / 1e9, 21, 0.5);
  EXPECT_NEAR(active("mixtral-8x7b") / 1e9, 12.9, 0.05);
  EXPECT_NEAR(all("mamba-2.8b") / 1e9, 2.77, 0.005);
  EXPECT_NEAR(all("jamba") / 1e9, 51.6, 0.05);
  EXPECT_NEAR(active("jamba") / 1e9, 12, 0.2);
}

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

TEST(State, IsWhatTheEngineAllocates) {
  auto backend = make_ref_backend();
  for (const fs::path& path : fixtures()) {
    Subject subject = subject_of(path.string());
    for (auto [name, dtype] : {std::pair{"f16", DType::f16}, {"bf16", DType::bf16}, {"f32", DType::f32}}) {
      auto files = Checkpoint::open(path);
      auto model = Model::load(*files, *backend, {dtype});
      store_keys_as(subject.storage, name);
      int64_t per_token = 0, per_sequence = 0;
      for (const StateKind& k : state_kinds(subject.spec, subject.storage)) {
        per_token += k.bytes_per_token;
        per_sequence += k.bytes_per_sequence;
      }
      EXPECT_EQ(per_token, model->layout().bytes_per_token()) << path;
      EXPECT_EQ(per_sequence, model->layout().bytes_per_sequence()) << path;
      double held = 0;  // of one sequence of 20 tokens
      for (const Group& g : model->layout().groups())
        held += double(g.bytes) * (g.kind == StateSpec::Kind::slot ? 1 : g.window ? std::min(20, g.window) : 20);
      EXPECT_EQ(state_bytes(subject.spec, subject.storage, 20), held) << path;
    }
  }
}

// The test above sees every family that the engine runs; of one that it only describes, the layout is all there is.
TEST(State, OfEveryFamily) {
  std::vector<std::string> families;
  for (const fs::path& path : fixtures()) families.push_back(subject_of(path.string()).spec.arch);
  for (std::string_view name : arch_names())
    if (!std::ranges::count(families, name)) {
      EXPECT_EQ(name, "deepseek_v2");
    }
  for (const Preset& p : presets()) {
    const ModelSpec spec = spec_of(p);
    const StateLayout layout = layout_of(spec, {DType::bf16});
    int64_t per_token = 0, per_sequence = 0;
    for (const StateKind& k : state_kinds(spec, {})) {
      per_token += k.bytes_per_token;
      per_sequence += k.bytes_per_sequence;
    }
    EXPECT_EQ(per_token, layout.bytes_per_token()) << p.name;
    EXPECT_EQ(per_sequence, layout.bytes_per_sequence()) << p.name;
  }
}

// Bytes of the matrices in a file, counted from the file.
TEST(State, ParameterBytesAreThoseOfTheFile) {
  for (const fs::path& path : fixtures()) {
    Subject subject = subject_of(path.string());
    double stored = 0, vectors = 0, padding = 1;
    auto files = Checkpoint::open(path);
    for (const StoredTensor& t : files->tensors()) {
      (t.shape.size() >= 2 ? stored : vectors) += double(t.bytes.size());
      if (!files->quantization().empty()) padding += 64;  // between the tensors of a quantized weight
    }
    EXPECT_NEAR(parameter_bytes(subject.spec, subject.storage), stored, vectors + padding) << path;
  }
}

TEST(Presets, AHybridThatSharesKeepsAFractionOfMha) {
  ModelSpec spec = spec_of(*find_preset("character-hybrid"));
  double s = 8192;
  // 8 global and 40 local layers of one head, in pairs; MHA has 48 layers of 40.
  double own = (4 * s + 20 * 1024) * 2 * 128 * 2, mha = 48 * s * 40 * 2 * 128 * 2;
  EXPECT_EQ(state_bytes(spec, {}, s), own);
  EXPECT_EQ(mha_state_bytes(spec, {}, s), mha);
  EXPECT_GT(mha / own, 20);  // Character.AI speaks of more than 20 times
  for (const LayerSpec& layer : spec.layers) {
    const AttentionSpec& a = std::get<AttentionSpec>(layer.mixer);
    if (a.kv_owner < 0) continue;
    EXPECT_EQ(std::get<AttentionSpec>(spec.layers[size_t(a.kv_owner)].mixer).window, a.window);
  }
}

// Jamba: 4 layers of 32 attend, with 8 heads of 128 for 32. As a transformer it would have 32 layers of 32.
TEST(Presets, AHybridWithRecurrentLayersIsComparedWithATransformer) {
  ModelSpec spec = spec_of(*find_preset("jamba"));
  EXPECT_EQ(mha_state_bytes(spec, {}, 1000), 32.0 * 32 * 128 * 2 * 2 * 1000);
  EXPECT_EQ(mha_state_bytes(spec_of(*find_preset("mamba-2.8b")), {}, 1000), 0);
}

TEST(Presets, WhatAModelCannotBeIsRefused) {
  const ModelSpec llama = spec_of(*find_preset("llama-3.1-8b")), mamba = spec_of(*find_preset("mamba-2.8b"));
  EXPECT_NO_THROW(apply({.kv_share = 32}, llama));
  EXPECT_THROW(apply({.kv_share = 33}, llama), Error);
  EXPECT_THROW(apply({.kv_share = 22}, spec_of(*find_preset("gemma-2-9b"))), Error);  // 42 layers, of two kinds
  EXPECT_THROW(apply({.window = 128, .global_every = 33}, llama), Error);
  EXPECT_NO_THROW(apply({.experts = 8, .experts_used = 2}, llama));
  EXPECT_THROW(apply({.experts = 8, .experts_used = 2}, mamba), Error);
}

TEST(Presets, AllCanBeAnalysed) {
  for (const Preset& p : presets())
    for (const Chip& chip : chips()) {
      Question q = question(std::string(p.name).c_str(), chip.name.c_str());
      q.contexts = {512, 4096};
      Analysis a = analyze(q);
      EXPECT_EQ(a.rows.size(), 8u);
      for (const AnalysisRow& r : a.rows) EXPECT_TRUE(r.step.seconds > 0 && std::isfinite(r.step.seconds) && r.latency_s > 0) << p.name;
    }
}

TEST(WhatFits, IsTheLargestThatHolds) {
  Question q = question("llama-2-13b", "h100");
  q.contexts = {1024};
  Analysis a = analyze(q);
  int64_t b = a.limits[0].largest_batch;
  EXPECT_EQ(b, int64_t((80e9 - 2 * 13'015'449'600.0) / 838'860'800.0));
  int64_t users = a.limits[0].users;
  auto step = [&](int64_t n) { return step_cost(q.subject.spec, q.subject.storage, Phase::generation(double(n), 1024), q.on).seconds; };
  EXPECT_TRUE(users == b || (step(users) <= 0.1 && step(users + 1) > 0.1));
  for (auto [batch, context] : a.longest_context) {
    double left = 80e9 - 2 * 13'015'449'600.0, a_token = double(batch) * 819200;
    EXPECT_EQ(context, int64_t(left / a_token)) << batch;
  }
  q.deadline_s = 0.1;
  a = analyze(q);
  auto prompts = [&](int64_t n) { return step_cost(q.subject.spec, q.subject.storage, Phase::prefill(double(n), 1024), q.on).seconds; };
  const Fitting& l = a.limits[0];  // speed, price and chips are those of users who wait no longer than that
  EXPECT_EQ(l.both, std::min(l.users, l.within_deadline));
  EXPECT_LT(l.both, l.users);
  EXPECT_DOUBLE_EQ(l.tokens_per_s, double(l.both) / step(l.both));
  EXPECT_DOUBLE_EQ(l.price_per_million, 1e6 / 3600 / l.tokens_per_s);
  EXPECT_LE(prompts(a.limits[0].within_deadline), 0.1);
  EXPECT_GT(prompts(a.limits[0].within_deadline + 1), 0.1);
}

TEST(WhatIf, FormatsChipsReplicasAndDemand) {
  Question q = question("llama-2-13b", "h100");
  q.batches = {16};
  AnalysisRow plain = analyze(q).rows[0];

  Question smaller = q;
  store_weights_as(smaller.subject.storage, "int4");
  store_keys_as(smaller.subject.storage, "fp8");
  AnalysisRow r = analyze(smaller).rows[0];
  EXPECT_NEAR(r.parameter_bytes, plain.parameter_bytes * 4.125 / 16, 1);
  EXPECT_EQ(r.state_bytes_per_sequence, plain.state_bytes_per_sequence / 2);

  Question four = q;
  four.on.tp = 4;
  r = analyze(four).rows[0];
  EXPECT_EQ(r.memory_bytes, plain.memory_bytes);
  EXPECT_EQ(r.memory_per_chip, plain.memory_bytes / 4);
  EXPECT_GT(r.step.seconds, plain.step.seconds / 4);  // messages and norms are not shared
  EXPECT_LT(r.step.seconds, plain.step.seconds / 3);
  // Operations are one chip's: what it computes and moves, over its own speeds, is its time.
  const Analysis shared = analyze(four);
  for (const Analysis::Point& p : shared.operations) {
    const double rate = p.op.product ? product_rate(q.on.chip, p.op.format) : q.on.chip.bf16;
    EXPECT_DOUBLE_EQ(p.time.seconds, std::max({p.op.flops / rate, p.op.bytes() / q.on.chip.bandwidth, p.op.link / q.on.chip.link}))
        << p.op.name;
    if (p.op.name == "feed-forward up" && !p.prefill) {
      EXPECT_EQ(p.op.flops, 16 * 2.0 * 5120 * 2 * 13824 * 40 / 4);
    }
  }
  EXPECT_NE(text_report(shared).find("sent to other chips"), std::string::npos);
  four.subject.spec = apply({.kv_heads = 1}, four.subject.spec);  // one head cannot be split
  EXPECT_EQ(state_bytes(four.subject.spec, {}, 100, 4), state_bytes(four.subject.spec, {}, 100, 1));

  Question many = q;
  many.on.replicas = 8;
  many.demand_words = 100e9;
  Analysis a = analyze(many);
  EXPECT_EQ(a.rows[0].tokens_per_s, 8 * plain.tokens_per_s);
  EXPECT_EQ(a.rows[0].price_per_million, plain.price_per_million);
  EXPECT_EQ(a.limits[0].chips_for_demand, int64_t(std::ceil(100e9 * 4 / 3 / 86400 / (a.limits[0].tokens_per_s / 8))));
  many.deadline_s = 1e-3;  // nobody reads 26 TFLOP in it
  EXPECT_EQ(analyze(many).limits[0].chips_for_demand, 0);
}

TEST(WhatIf, Drafts) {
  Question q = question("llama-3.1-70b", "h200");
  store_weights_as(q.subject.storage, "fp8");
  q.batches = {1};
  q.draft = {subject_of(*find_preset("smollm2-135m")), 1, 4};
  double all = analyze(q).rows[0].draft_speedup;
  EXPECT_GT(all, 4.5);  // five tokens for hardly more than one step
  EXPECT_LT(all, 5);
  q.draft->acceptance = 0;
  double none = analyze(q).rows[0].draft_speedup;
  EXPECT_LT(none, 1);
  q.draft->acceptance = 0.7;
  EXPECT_NEAR(analyze(q).rows[0].draft_speedup / none, (1 - std::pow(0.7, 5)) / 0.3, 1e-9);
  // Both models and both states share the memory.
  q.draft->subject = subject_of(*find_preset("llama-3.1-8b"));
  const Subject& draft = q.draft->subject;
  double left = 141e9, each = 0;
  for (const Subject* s : {static_cast<const Subject*>(&q.subject), &draft}) {
    left -= parameter_bytes(s->spec, s->storage);
    each += state_bytes(s->spec, s->storage, 1024);
  }
  q.batches = {int64_t(left / each), int64_t(left / each) + 1};
  const Analysis a = analyze(q);
  EXPECT_EQ(a.limits[0].largest_batch, q.batches[0]);
  for (const AnalysisRow& r : a.rows) {
    EXPECT_NEAR(r.memory_bytes, 141e9 - left + double(r.batch) * each, 1);
    EXPECT_EQ(r.fits, r.memory_bytes <= 141e9);
  }
}

TEST(WhatIf, ADraftThatCannotPayIsASentence) {
  Question q = question("llama-2-7b", "h100");
  q.draft = {subject_of(*find_preset("llama-2-13b")), 0.7, 4};
  Analysis a = analyze(q);
  ASSERT_EQ(a.warnings.size(), 1u);
  EXPECT_NE(a.warnings[0].find("13,015,864,320"), std::string::npos);
  EXPECT_NE(a.warnings[0].find("6,738,415,616"), std::string::npos);
  std::swap(q.subject, q.draft->subject);
  EXPECT_TRUE(analyze(q).warnings.empty());
  q.draft->subject = subject_of(*find_preset("smollm2-135m"));  // of another vocabulary
  ASSERT_EQ(analyze(q).warnings.size(), 1u);
  EXPECT_NE(analyze(q).warnings[0].find("49,152"), std::string::npos);
}

TEST(WhatIf, ImpossibleOnesAreSentences) {
  ModelSpec llama = spec_of(*find_preset("llama-2-13b")), mamba = spec_of(*find_preset("mamba-2.8b"));
  EXPECT_THROW(apply({.kv_heads = 7}, llama), Error);
  EXPECT_THROW(apply({.kv_heads = 1}, mamba), Error);
  EXPECT_THROW(apply({.experts = 2, .experts_used = 3}, llama), Error);
  Question q = question("llama-2-13b", "h100");
  q.batches = {0};
  EXPECT_THROW(analyze(q), Error);
  q.batches = {1};
  for (int chips : {3, 7, 16}) {  // 40 heads
    q.on.tp = chips;
    EXPECT_THROW(analyze(q), Error) << chips;
  }
  for (int chips : {2, 4, 8}) EXPECT_NO_THROW(check_split(llama, chips)) << chips;
  EXPECT_THROW(check_split(apply({.kv_heads = 8}, llama), 5), Error);  // 8 heads on 5 chips
  EXPECT_NO_THROW(check_split(apply({.kv_heads = 2}, llama), 8));      // each on four of them
  EXPECT_THROW(chip_named("abacus"), Error);
  EXPECT_THROW(number_format("int3"), Error);
}

// Ranges as numeric limits and the formats' definitions give them.
TEST(Formats, Ranges) {
  EXPECT_EQ(number_format("f32").largest, double(std::numeric_limits<float>::max()));
  EXPECT_EQ(number_format("f32").smallest, double(std::numeric_limits<float>::min()));
  EXPECT_EQ(number_format("f32").step, double(std::numeric_limits<float>::epsilon()));
  EXPECT_EQ(number_format("f16").largest, double(f32_from_f16(0x7bff)));
  EXPECT_EQ(number_format("f16").smallest, double(f32_from_f16(0x0400)));
  EXPECT_EQ(number_format("bf16").largest, double(f32_from_bf16(0x7f7f)));
  EXPECT_EQ(number_format("bf16").step, double(f32_from_bf16(0x3f81)) - 1);
  for (const NumberFormat& f : number_formats())
    if (const Codec* c = find_codec(f.name)) {
      EXPECT_EQ(f.bytes, c->bytes_per_weight()) << c->name;
    }
}

}  // namespace
}  // namespace mr
