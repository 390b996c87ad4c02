// The memory plan: known before anything is allocated, and what the engine then really takes.
#include "engine/harness.h"
#include "engine/memory.h"

namespace mr {
namespace {

std::unique_ptr<Model> outline(const std::string& name, Backend& backend) {
  return Model::outline(*Checkpoint::open(fixture(name)), backend, {DType::f16});
}

TEST(Memory, ThePlanIsWhatTheEngineTakes) {
  auto backend = make_cpu_backend(best_isa(), 1);
  for (const std::string& name : fixture_names()) {
    auto engine = open(name);
    EngineMemory plan = plan_engine(*outline(name, *backend), {}, int64_t(1) << 40);
    EXPECT_EQ(plan.weights, engine->model().weight_bytes()) << name;
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
      plan_engine(*model, options, machine);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  EngineMemory fits = plan_engine(*model, {}, int64_t(1) << 40);
  EXPECT_EQ(refusal({.state_bytes = fits.state.bytes()}, fits.bytes()), "");
  std::string text = refusal({.state_bytes = fits.state.bytes()}, fits.bytes() - 4096);
  EXPECT_EQ(text,
            fmt::format("this needs {} (weights {}, state {}, workspace {}, swap 0.0 KiB) but the machine has {}: leave at most {} to "
                        "the state (--memory)",
                        size_text(fits.bytes()), size_text(fits.weights), size_text(fits.state.bytes()), size_text(fits.workspace),
                        size_text(fits.bytes() - 4096), size_text(fits.state.bytes() - 4096)));
  EXPECT_NE(refusal({}, fits.weights / 2).find("weights alone do not fit"), std::string::npos);
  EXPECT_NE(refusal({}, fits.weights + fits.workspace / 2).find("fewer rows a step (--max-batch-tokens)"), std::string::npos);
}

// Without a wish the state takes what a few sequences need, and less where the machine is small.
TEST(Memory, TheStateMakesDoWithAShareOfTheMachine) {
  auto backend = make_cpu_backend(best_isa(), 1);
  auto model = outline("llama_gqa", *backend);
  EngineMemory large = plan_engine(*model, {.max_seqs = 4}, int64_t(1) << 40);
  EXPECT_EQ(large.state.n_tokens, 4 * model->spec().max_context);
  int64_t machine = large.weights + large.workspace + large.state.bytes();
  EngineMemory small = plan_engine(*model, {.max_seqs = 4}, machine);
  EXPECT_LE(small.state.bytes(), large.state.bytes() * 4 / 10);
  EXPECT_GT(small.state.n_tokens, 0);
}

}  // namespace
}  // namespace mr
