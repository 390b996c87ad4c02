// What is counted of the program that runs, beside the closed forms that know the specification alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>

#include "analyze/subject.h"
#include "core/error.h"
#include "model/arch/arch.h"

namespace mr {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> fixtures() {
  std::vector<fs::path> paths;
  for (auto& entry : fs::directory_iterator(fs::path(MR_FIXTURES) / "models")) {
    if (fs::exists(entry.path() / "model.gguf")) paths.push_back(entry.path() / "model.gguf");
    if (!fs::exists(entry.path() / "config.json")) continue;
    const std::string family = read_json(entry.path() / "config.json")["model_type"];
    if (std::ranges::count(arch_names(), family)) paths.push_back(entry.path());
  }
  return paths;
}

// Plain blocks of attention and Mamba must have them; of others the program is enough.
bool has_closed_forms(const Subject& s) {
  const bool must = !s.spec.altup.streams && std::ranges::all_of(s.spec.layers, [](const LayerSpec& l) {
    return l.mixer.index() <= MixerSpec(Mamba2Spec{}).index();
  });
  try {
    operations(s.spec, s.storage, Phase::generation(1, 1));
  } catch (const Error& e) {
    EXPECT_FALSE(must) << e.what();
    return false;
  }
  return true;
}

struct Sums {
  double products = 0, attention = 0, scans = 0, rest = 0;  // flops
  double weights = 0, state = 0;                            // bytes; weights of products
  explicit Sums(const std::vector<Operation>& ops) {
    for (const Operation& o : ops) {
      const bool attends = o.name.starts_with("attention") && !o.product;
      (o.product ? products : attends ? attention : o.name == "scan" ? scans : rest) += o.flops;
      if (o.product) weights += o.weights;
      state += o.state;
    }
  }
};

// Steps whose rows are mostly wanted: all of them pass through every layer, as the closed forms have it.
const std::vector<std::vector<Phase>> kSteps = {
    {Phase::generation(1, 1)}, {Phase::generation(5, 64)}, {{1, 32, 32, 32}}, {{2, 1, 40, 1}, {1, 8, 48, 8}}};

// The least and most of packed over stored bytes: output rows come in panels of 16, two at a time.
double padding(const Program& program) {
  double most = 1;
  for (const Op& op : program.whole.ops) {
    const Weight* w = op.get<LinearOp>()          ? op.get<LinearOp>()->weight
                      : op.get<GroupedLinearOp>() ? &op.get<GroupedLinearOp>()->experts[0]
                                                  : nullptr;
    if (w) most = std::max(most, double((w->out + 31) / 32 * 32) / double(w->out) * double((w->in + 31) / 32 * 32) / double(w->in));
  }
  return most;
}

TEST(ProgramCosts, AgreeWithTheClosedForms) {
  ASSERT_GE(fixtures().size(), 30u);
  for (const fs::path& path : fixtures()) {
    Subject s = subject_of(path.string());
    ASSERT_TRUE(s.program) << path;
    if (!has_closed_forms(s)) continue;
    const double padded = padding(s.outline->program());
    for (const std::vector<Phase>& parts : kSteps) {
      const Sums program(s.program->operations(s.storage, parts)), closed(operations(s.spec, s.storage, parts));
      EXPECT_DOUBLE_EQ(program.products, closed.products) << path;
      EXPECT_DOUBLE_EQ(program.attention, closed.attention) << path;
      EXPECT_GE(program.weights, closed.weights * (1 - 1e-9)) << path;
      EXPECT_LE(program.weights, closed.weights * padded * (1 + 1e-9)) << path;
      // A closed form counts what the engine keeps, a convolution's inputs rounded up to 64 bytes.
      EXPECT_LE(program.state, closed.state) << path;
      EXPECT_GE(program.state, closed.state * 0.95) << path;
      // Softplus is the program's alone: 4 flops a channel beside the 7 n + 3 of a scan of n states, which are 5 or more.
      EXPECT_GE(program.scans, closed.scans) << path;
      EXPECT_LE(program.scans, closed.scans * (1 + 4 / (7 * 5 + 3.0)) * (1 + 1e-9)) << path;
      // Elementwise work, where the program lists what the closed forms leave out: norms on heads (Qwen 3, Gemma), the choice
      // of experts and their sum (Mixtral), angles. It is little beside the products of any real model, see below.
      EXPECT_GE(program.rest, closed.rest * 0.5) << path;
      EXPECT_LE(program.rest, closed.rest * 1.75) << path;
    }
  }
}

// At the size of real models what the two count differently vanishes beside products, attention and state.
TEST(ProgramCosts, AgreeWithinAHundredthOnRealModels) {
  const fs::path folder = fs::path(testing::TempDir()) / "program_costs";
  for (const char* name : {"llama-3.1-8b", "mixtral-8x7b", "jamba", "mamba-2.8b"}) {
    const Preset& preset = *find_preset(name);
    fs::create_directories(folder);
    std::ofstream(folder / "config.json") << preset.config;
    const Subject s = subject_of(folder.string());
    ASSERT_TRUE(s.program) << name;
    for (const Phase& phase : {Phase::generation(1, 1024), Phase::generation(64, 1024), Phase{1, 512, 512, 512}}) {
      double flops[2]{}, bytes[2]{};
      const std::vector<Operation> both[] = {operations(s, phase, 1), operations(s.spec, s.storage, phase)};
      for (int i = 0; i < 2; i++)
        for (const Operation& o : both[i]) {
          flops[i] += o.flops;
          bytes[i] += o.weights + o.state;
        }
      EXPECT_NEAR(flops[0] / flops[1], 1, 0.01) << name;
      EXPECT_NEAR(bytes[0] / bytes[1], 1, 0.01) << name;
    }
    fs::remove_all(folder);
  }
}

// Only rows whose logits are wanted go on after the last block's state, where these are at most half.
TEST(ProgramCosts, TheLastBlockGoesOnWithWhatIsWanted) {
  const Subject s = subject_of((fs::path(MR_FIXTURES) / "models" / "llama_gqa").string());
  auto flops = [&](double outputs) {
    double sum = 0;
    for (const Operation& o : operations(s, {1, 64, 64, outputs}, 1))
      if (o.product && o.name != "output layer") sum += o.flops;
    return sum;
  };
  const double behind = 2.0 * (4 * 24 * 40 + 3 * 40 * 72);  // of a row
  EXPECT_EQ(flops(64) - flops(1), 63 * behind);
  EXPECT_EQ(flops(64) - flops(0), 64 * behind);
  EXPECT_EQ(flops(64), flops(33));
}

// Another format of weights or keys changes their bytes alone; several chips send what they add up.
TEST(ProgramCosts, WhatIf) {
  Subject s = subject_of((fs::path(MR_FIXTURES) / "models" / "llama_gqa").string());
  auto sums = [&](int chips) { return s.program->operations(s.storage, std::vector<Phase>{Phase::generation(4, 32)}, chips); };
  const Sums before(sums(1));
  const double matrices = before.products / (2 * 4);
  store_weights_as(s.storage, "int8");
  EXPECT_DOUBLE_EQ(Sums(sums(1)).weights, matrices);
  const double state = Sums(sums(1)).state;
  store_keys_as(s.storage, "fp8");
  EXPECT_DOUBLE_EQ(Sums(sums(1)).state, state / 2);
  double sent = 0;
  for (const Operation& o : sums(2)) sent += o.link;
  EXPECT_DOUBLE_EQ(sent, 2 * 2 * (2.0 * 1 / 2) * 4 * 40 * s.storage.activation);  // layers, parts of each, a ring of two
  ModelSpec windowed = s.spec;
  std::get<AttentionSpec>(windowed.layers[0].mixer).window = 8;
  describe_as(s, s.spec);
  EXPECT_TRUE(s.program);
  describe_as(s, windowed);
  EXPECT_FALSE(s.program);  // nobody has recorded that
}

// A mixer without closed forms is counted as it runs, and a what-if that would need them says so.
TEST(ProgramCosts, CountAMixerThatNobodyDescribedTwice) {
  Subject s = subject_of((fs::path(MR_FIXTURES) / "models" / "lfm2").string());
  ASSERT_TRUE(s.program);
  const std::vector<Operation> ops = operations(s, Phase::generation(3, 16), 1);
  auto named = [&](const char* name) { return *std::ranges::find(ops, name, &Operation::name); };
  EXPECT_EQ(named("in").flops, 2 * 2.0 * 3 * 32 * 96);  // two layers of it
  EXPECT_EQ(named("out").flops, 2 * 2.0 * 3 * 32 * 32);
  EXPECT_EQ(named("convolution").state, 2 * 3 * (3 - 1) * 32 * 4.0);
  EXPECT_THROW(operations(s.spec, s.storage, Phase::generation(1, 1)), Error);
}

}  // namespace
}  // namespace mr
