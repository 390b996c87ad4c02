// The memory plan: known before anything is allocated, and what the engine then really takes.
#include "engine/memory.h"

#include "engine/harness.h"

namespace mr {
namespace {

constexpr DeviceMemory large_machine{int64_t(1) << 40};

std::unique_ptr<Model> outline(const std::string& name, Backend& backend) {
  return Model::outline(*Checkpoint::open(fixture(name)), backend, {DType::f16});
}

TEST(Memory, ThePlanIsWhatTheEngineTakes) {
  auto backend = make_cpu_backend(best_isa(), 1);
  for (const std::string& name : fixture_names()) {
    auto engine = open(name);
    EngineMemory plan = plan_engine(*outline(name, *backend), {}, *backend, large_machine);
    EXPECT_EQ(plan.weights, engine->model().weight_bytes()) << name;
    EXPECT_EQ(engine->model().weights().size(), 1u) << name << ": one allocation";
    EXPECT_EQ(plan.state.bytes(), engine->memory_plan().bytes()) << name;
    EXPECT_EQ(plan.max_context, engine->max_context()) << name;
    int64_t allocated = 0;
    StateStore store(engine->memory_plan());
    for (const auto& g : store.memory().group) allocated += g.unit_bytes * g.n_units;
    EXPECT_EQ(allocated, plan.state.bytes()) << name;
  }
}

TEST(Memory, WhatCannotFitIsASentenceWithTheSum) {
  auto backend = make_cpu_backend(best_isa(), 1);
  auto model = outline("llama_gqa", *backend);
  auto refusal = [&](const EngineOptions& options, int64_t machine) -> std::string {
    try {
      plan_engine(*model, options, *backend, {machine});
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  EngineMemory fits = plan_engine(*model, {}, *backend, large_machine);
  EXPECT_EQ(refusal({.state_bytes = fits.state.bytes()}, fits.bytes()), "");
  std::string text = refusal({.state_bytes = fits.state.bytes()}, fits.bytes() - 4096);
  EXPECT_EQ(text, fmt::format(
                      "this needs {} (weights {}, state {}, workspace {}, {} for itself {}, swap 0.0 KiB) but the machine has {}: leave "
                      "at most {} to the state (--memory)",
                      size_text(fits.bytes()), size_text(fits.weights), size_text(fits.state.bytes()), size_text(fits.workspace),
                      backend->name(), size_text(fits.own_bytes()), size_text(fits.bytes() - 4096), size_text(fits.state.bytes() - 4096)));
  EXPECT_NE(refusal({}, fits.weights / 2).find("weights alone do not fit"), std::string::npos);
  EXPECT_NE(refusal({}, fits.weights + fits.workspace / 2).find("fewer rows a step (--max-batch-tokens)"), std::string::npos);
}

// Long prompts beside many short answers, on every fixture and every instruction set: what the backend keeps for itself grows to what the
// plan says or less, and the plan is no more than some times as much.
TEST(Memory, TheBackendKeepsWhatThePlanSays) {
  for (Isa isa : available_isas())
    for (const std::string& name : fixture_names())
      for (int threads : {1, 3}) {
        if (threads == 1 && isa != best_isa()) continue;
        EngineOptions options{.isa = isa, .threads = threads, .max_seqs = 6, .max_batch_tokens = 64, .max_context = 96};
        auto engine = open(name, options);
        const int64_t planned = engine->memory().own_bytes();
        std::mt19937 rng(5);
        std::vector<Request> requests;
        for (int i = 0; i < 12; i++) requests.push_back(random_request(rng, engine->model().spec().vocab, 80, 8));
        for (const auto& a : run_all(*engine, requests)) ASSERT_NE(a[0].finish, Finish::error) << a[0].error;
        const int64_t taken = engine->backend().own_bytes();
        EXPECT_GT(taken, 0) << name;
        EXPECT_LE(taken, planned) << name << ", " << name_of(isa) << ", " << threads << " threads";
        EXPECT_LE(planned, 16 * taken + (1 << 20)) << name << ", " << name_of(isa) << ", " << threads << " threads";
      }
}

// Contexts so long that rows are cut among threads, whose partial results are kept.
TEST(Memory, TheBackendKeepsWhatThePlanSaysOfLongContexts) {
  const auto folder = std::filesystem::path(testing::TempDir()) / "millrace_long_contexts";
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "config.json") << R"({"model_type": "llama", "hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 1,
    "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 100, "max_position_embeddings": 4096})";
  for (auto [threads, rows] : {std::pair{1, 512}, {3, 512}, {3, 64}}) {  // with few rows the partial results are most of it
    EngineOptions options{.threads = threads, .max_seqs = 2, .max_batch_tokens = rows, .random_weights = 1};
    auto engine = Engine::create(folder, options);
    const int64_t planned = engine->memory().own_bytes();
    ASSERT_EQ(run_one(*engine, greedy(std::vector<int32_t>(3000, 7), 4)).tokens.size(), 4u);
    const int64_t taken = engine->backend().own_bytes();
    EXPECT_LE(taken, planned) << threads << " threads, " << rows << " rows";
    EXPECT_LE(planned, 16 * taken + (1 << 20)) << threads << " threads, " << rows << " rows";
  }
}

// Before anything is loaded, not within a step.
TEST(Memory, AConvolutionTooWideForTheBackendIsASentence) {
  const auto folder = std::filesystem::path(testing::TempDir()) / "millrace_wide_convolution";
  std::filesystem::create_directories(folder);
  Json config = read_json(fixture("lfm2") / "config.json");
  for (auto [width, runs] : {std::pair{16, true}, {17, false}}) {
    config["conv_L_cache"] = width;
    std::ofstream(folder / "config.json") << config;
    for (const char* device : {"cpu", "ref"}) {
      EngineOptions options{.device = device, .threads = 1, .random_weights = 1};
      if (runs || device == std::string("ref")) {
        EXPECT_EQ(run_one(*Engine::create(folder, options), greedy({1, 2, 3}, 4)).tokens.size(), 4u) << device << " " << width;
        continue;
      }
      try {
        Engine::create(folder, options);
        ADD_FAILURE() << device << " takes a convolution of width " << width;
      } catch (const Error& e) {
        EXPECT_NE(std::string(e.what()).find("convolution of width 17, but the CPU takes at most 16"), std::string::npos) << e.what();
      }
    }
  }
}

// Without a wish the state takes what a few sequences need, and less where the machine is small.
TEST(Memory, TheStateMakesDoWithAShareOfTheMachine) {
  auto backend = make_cpu_backend(best_isa(), 1);
  auto model = outline("llama_gqa", *backend);
  EngineMemory large = plan_engine(*model, {.max_seqs = 4}, *backend, large_machine);
  EXPECT_EQ(large.state.n_tokens, 4 * model->spec().max_context);
  EngineMemory small = plan_engine(*model, {.max_seqs = 4}, *backend, {large.bytes()});
  EXPECT_LE(small.state.bytes(), large.state.bytes() * 4 / 10);
  EXPECT_GT(small.state.n_tokens, 0);
}

}  // namespace
}  // namespace mr
