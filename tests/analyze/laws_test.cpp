// What operations move and compute, against mathematics and the files' own bytes.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "analyze/analysis.h"
#include "core/error.h"
#include "model/arch/arch.h"
#include "model/model.h"

namespace mr {
namespace {

namespace fs = std::filesystem;

const Operation& op(const std::vector<Operation>& ops, const std::string& name) {
  for (const Operation& o : ops)
    if (o.name == name) return o;
  throw Error("no operation " + name);
}

TEST(Laws, AForwardIsTwiceTokensTimesParametersAndAttention) {
  ModelSpec spec = spec_of(*find_preset("llama-2-13b"));
  for (double s : {128.0, 1024.0}) {
    double flops = 0;
    for (const Operation& o : operations(spec, {}, Phase::prefill(1, s)))
      if (o.product || o.name == "attention") flops += o.flops;
    double table = 32000.0 * 5120, blocks = 13'015'449'600.0 - 2 * table;
    EXPECT_EQ(flops, 2 * s * blocks + 2 * table + 4 * (s * (s + 1) / 2) * 5120 * 40);  // one row needs the output layer
  }
}

// A step of unequal parts: products see all rows, weights are read once, attention is each sequence's own, and only rows whose
// logits are wanted pass through the output layer.
TEST(Laws, PartsOfAStepShareItsWeights) {
  ModelSpec spec = spec_of(*find_preset("llama-2-13b"));
  const std::vector<Phase> step{{1, 1, 100, 1}, {1, 1, 700, 1}, {1, 30, 50, 0}};  // the last: rows 21 to 50 of a prompt
  auto ops = operations(spec, {}, step);
  auto alone = operations(spec, {}, Phase::generation(1, 100));
  for (const Operation& o : alone) EXPECT_EQ(op(ops, o.name).weights, o.weights) << o.name;
  EXPECT_EQ(op(ops, "feed-forward up").flops, 2.0 * 32 * 5120 * 2 * 13824 * 40);
  EXPECT_EQ(op(ops, "attention").flops, 4.0 * (100 + 700 + (21 + 50) * 30 / 2) * 5120 * 40);
  EXPECT_EQ(op(ops, "attention").state, (100.0 + 700 + 50) * 2 * 5120 * 2 * 40);
  EXPECT_EQ(op(ops, "output layer").flops, 2.0 * 2 * 5120 * 32000);
  for (const Operation& o : operations(spec, {}, Phase{1, 30, 50, 0})) EXPECT_NE(o.name, "output layer");
  EXPECT_THROW(operations(spec, {}, std::vector<Phase>{}), Error);

  const std::vector<Phase> twice(2, Phase::generation(3, 64));
  const Deployment h100{chip_named("h100")};
  StepCost two = step_cost(operations(spec, {}, twice), h100), six = step_cost(spec, {}, Phase::generation(6, 64), h100);
  EXPECT_DOUBLE_EQ(two.bytes, six.bytes);
  EXPECT_DOUBLE_EQ(two.flops, six.flops);
  EXPECT_DOUBLE_EQ(two.seconds, six.seconds);
  EXPECT_GE(six.seconds, std::max(six.memory_s, six.compute_s));
  EXPECT_NEAR(six.memory_s, six.bytes / 3.35e12, 1e-9);
}

// Without activations, what one sequence reads is every matrix of the files but the embedding's, and the output layer.
TEST(Laws, BytesAreThoseOfTheFiles) {
  for (const char* name : {"llama_gqa", "llama_f16", "llama_tied", "gguf_q4_1", "gguf_q8_0", "qwen2", "mistral_window"}) {
    fs::path path = fs::path(MR_FIXTURES) / "models" / name;
    if (fs::exists(path / "model.gguf")) path /= "model.gguf";
    auto files = Checkpoint::open(path);
    const ModelSpec spec = describe(*files).spec;
    Storage storage = storage_of(*files);
    storage.activation = 0;
    double weights = 0, stored = 0;
    for (const Operation& o : operations(spec, storage, Phase::generation(1, 1))) weights += o.weights;
    for (const StoredTensor& t : files->tensors())
      if (t.shape.size() == 2 && (spec.tied || t.name.find("emb") == std::string::npos)) stored += double(t.bytes.size());
    EXPECT_NEAR(weights / stored, 1, 1e-9) << name;
  }
}

// Intensity of a product [B, D] . [D, F] in numbers of 2 bytes is B D F / (B D + D F + B F): at most B, and B where B << D, F.
TEST(Laws, AProductHasTheIntensityOfItsBatch) {
  ModelSpec spec = spec_of(*find_preset("llama-2-13b"));
  for (double b : {1.0, 8.0, 64.0, 512.0}) {
    auto ops = operations(spec, {}, Phase::generation(b, 1024));
    const Operation& up = op(ops, "feed-forward up");
    double d = 5120, f = 2 * 13824;
    EXPECT_NEAR(up.intensity(), b * d * f / (b * d + d * f + b * f), 1e-9 * b);
    EXPECT_LE(up.intensity(), b);
    EXPECT_EQ(up.law_intensity, b);
    if (b <= 64) {
      EXPECT_NEAR(up.intensity() / b, 1, 0.02);
    }
  }
}

TEST(Laws, AttentionInGenerationHasTheIntensityOfItsGroups) {
  for (auto [kv_heads, group] : {std::pair{40, 1.0}, {8, 5.0}, {1, 40.0}}) {
    ModelSpec spec = apply({.kv_heads = kv_heads}, spec_of(*find_preset("llama-2-13b")));
    for (double b : {1.0, 64.0})
      for (double s : {256.0, 65536.0}) {
        auto ops = operations(spec, {}, Phase::generation(b, s));
        const Operation& o = op(ops, "attention");
        EXPECT_NEAR(o.intensity(), group * s / (s + group), 1e-9 * group);  // whatever B is
        EXPECT_NEAR(o.intensity(), o.law_intensity, 1e-9 * group);
      }
  }
}

// Chunks of T rows against a context: S T / (S + T), but for what causality takes off.
TEST(Laws, AttentionOfAPrompt) {
  ModelSpec spec = spec_of(*find_preset("llama-2-13b"));
  auto ops = operations(spec, {}, {1, 64, 65536});
  EXPECT_NEAR(op(ops, "attention").intensity() / (65536.0 * 64 / (65536 + 64)), 1, 1e-3);
  ops = operations(spec, {}, Phase::prefill(1, 4096));
  EXPECT_NEAR(op(ops, "attention").intensity() / op(ops, "attention").law_intensity, 0.5, 1e-3);
}

TEST(Laws, AWindowBoundsPairsAndState) {
  ModelSpec full = spec_of(*find_preset("llama-2-13b")), windowed = apply({.window = 512}, full);
  for (int s : {100, 511, 512, 513, 3000})
    for (int t : {1, 7, 100}) {
      double pairs = 0, keys = std::min(s, 512 + t - 1);
      for (int i = s - t + 1; i <= s; i++) pairs += std::min(i, 512);
      auto ops = operations(windowed, {}, {3, double(t), double(s)});
      const Operation& o = op(ops, "attention, window 512");
      EXPECT_EQ(o.flops, 40 * 4 * 5120 * 3 * pairs) << s << " " << t;
      EXPECT_EQ(o.state, 40 * 2.0 * 5120 * 2 * 3 * keys) << s << " " << t;
    }
  EXPECT_EQ(state_bytes(windowed, {}, 8192), state_bytes(full, {}, 512));
}

TEST(Laws, DeepSeeksLatentIsReadOnceForAllHeads) {
  ModelSpec spec = spec_of(*find_preset("deepseek-v2"));
  auto ops = operations(spec, {}, Phase::generation(8, 1e6));
  EXPECT_NEAR(op(ops, "latent attention").intensity(), 242, 0.5);
  EXPECT_EQ(state_bytes(spec, {}, 1000), 1000.0 * (512 + 64) * 2 * 60);
  EXPECT_NEAR(mha_state_bytes(spec, {}, 1000) / state_bytes(spec, {}, 1000), 128.0 * (192 + 128) / 576, 1e-9);
  ops = operations(spec, {}, Phase::prefill(1, 4096));  // many rows share the keys that are made of the latents
  EXPECT_EQ(op(ops, "latent attention").flops, 60.0 * 2 * (4096.0 * 4097 / 2) * 128 * (192 + 128));
}

// Llama rotates every dimension of queries and keys, 3 flops each; Jamba has no positions, and only stores keys and values.
TEST(Laws, RotationIsCountedWhereThereIsOne) {
  auto llama = operations(spec_of(*find_preset("llama-3.1-8b")), {}, Phase::generation(7, 100));
  EXPECT_EQ(op(llama, "rope, store K/V").flops, 32.0 * 7 * 3 * (32 + 8) * 128);
  auto jamba = operations(spec_of(*find_preset("jamba")), {}, Phase::generation(7, 100));
  EXPECT_THROW(op(jamba, "rope, store K/V"), Error);
  EXPECT_EQ(op(jamba, "store K/V").flops, 0);
  EXPECT_EQ(op(jamba, "store K/V").written, 4.0 * 7 * 2 * 8 * 128 * 2);
}

// Against a count of what random choices really touch.
TEST(Laws, ExpertsReadInAStep) {
  std::mt19937 rng(1);
  for (auto [experts, used, rows] : {std::tuple{8, 2, 1}, {8, 2, 4}, {160, 6, 32}, {16, 1, 10}}) {
    double touched = 0;
    const int tries = 4000;
    for (int i = 0; i < tries; i++) {
      std::vector<bool> seen(static_cast<size_t>(experts));
      std::vector<int> ids(static_cast<size_t>(experts));
      for (int r = 0; r < rows; r++) {
        for (int e = 0; e < experts; e++) ids[size_t(e)] = e;
        std::shuffle(ids.begin(), ids.end(), rng);
        for (int k = 0; k < used; k++) seen[size_t(ids[size_t(k)])] = true;
      }
      touched += double(std::ranges::count(seen, true)) / tries;
    }
    EXPECT_NEAR(experts_read(experts, used, rows) / touched, 1, 0.02) << experts << " " << rows;
  }
  EXPECT_NEAR(experts_read(8, 2, 1), 2, 1e-12);
  EXPECT_NEAR(experts_read(8, 2, 1000), 8, 1e-12);
}

// Against the loop itself: every tile of queries is read and its result written, and it passes the keys and values up to its end.
TEST(Laws, FlashAttentionMovesLessWithMoreFastMemory) {
  for (auto [s, h, m] :
       {std::tuple{8192, 128, 65536}, {1000, 64, 32768}, {1000, 64, 30000}, {77, 128, 114000}, {300, 64, 256}, {1, 64, 4096}}) {
    const FlashCost c = flash_attention(s, h, m);
    double words = 0, pairs = 0;
    int tile = std::min(s, std::max(1, m / (4 * h)));
    for (int begin = 0; begin < s; begin += tile) {
      const int end = std::min(s, begin + tile);
      words += 2.0 * (end - begin) * h + 2.0 * end * h;
      for (int row = begin; row < end; row++) pairs += row + 1;
    }
    EXPECT_EQ(c.tile, tile);
    EXPECT_LE(4 * c.tile * h, std::max(m, 4 * h));
    EXPECT_EQ(c.words, words) << s << " " << m;
    EXPECT_EQ(c.flops, 4 * pairs * h);
    EXPECT_EQ(c.law_flops, 4.0 * s * s * h);
    EXPECT_DOUBLE_EQ(c.law_words, double(s) * s * h * h / m);
    EXPECT_GE(c.words, 4.0 * s * h);  // no less than its inputs and its result
    EXPECT_EQ(c.extra_words, 2.0 * s);
  }
  // Long prompts: four times the law (tiles of a quarter, keys and values, half of the pairs), and half of it with twice the memory.
  const FlashCost small = flash_attention(1 << 20, 128, 65536), large = flash_attention(1 << 20, 128, 131072);
  EXPECT_NEAR(small.words / small.law_words, 4, 0.01);
  EXPECT_NEAR(small.words / large.words, 2, 0.01);
  EXPECT_NEAR(flash_attention(1 << 21, 128, 65536).words / small.words, 4, 0.01);  // S^2
}

}  // namespace
}  // namespace mr
