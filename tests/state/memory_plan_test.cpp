#include "state/memory_plan.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace mr {
namespace {

using Kind = StateSpec::Kind;

StateLayout layout_of(std::initializer_list<StateSpec> specs) {
  StateLayout layout;
  for (StateSpec spec : specs) layout.add(spec);
  return layout;
}

std::string error_of(const StateLayout& layout, const StateLimits& limits) {
  try {
    plan_memory(layout, limits);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

TEST(MemoryPlan, KeepsTheTokensAskedFor) {
  MemoryPlan plan = plan_memory(layout_of({{Kind::paged, 256}, {Kind::paged, 256}}), {.page_tokens = 16, .max_tokens = 100, .max_seqs = 4});
  ASSERT_EQ(plan.group.size(), 1u);
  EXPECT_EQ(plan.group[0].unit_bytes, 512 * 16);
  EXPECT_EQ(plan.group[0].n_units, 1 + 7);  // 100 tokens in pages of 16, and the sink
  EXPECT_EQ(plan.n_tokens, 112);
  EXPECT_EQ(plan.bytes(), 8 * 512 * 16);
}

TEST(MemoryPlan, FillsTheBudgetAndNoMore) {
  StateLayout layout = layout_of({{Kind::paged, 1024}, {Kind::paged, 512, 64}, {Kind::slot, 4096}});
  for (int64_t budget : {1 << 20, 3 << 20, 50 << 20}) {
    MemoryPlan plan = plan_memory(layout, {.page_tokens = 16, .bytes = budget, .max_seqs = 4, .max_rows = 32});
    EXPECT_LE(plan.bytes(), budget);
    EXPECT_GT(plan.bytes() + (1024 + 512) * 16, budget);  // one more page of each would not fit
    EXPECT_EQ(plan.n_tokens, (plan.group[0].n_units - 1) * 16);
    EXPECT_EQ(plan.group[2].n_units, 1 + 4 + 8);  // the zero slot, one a sequence, two snapshots a sequence
  }
}

TEST(MemoryPlan, GivesAWindowNoMoreThanItCanUse) {
  StateLayout layout = layout_of({{Kind::paged, 64}, {Kind::paged, 64, 64}});
  MemoryPlan plan = plan_memory(layout, {.page_tokens = 16, .max_tokens = 1 << 20, .max_seqs = 4, .max_rows = 32});
  EXPECT_EQ(plan.group[1].n_units, 1 + 2 * 4 * 8);  // 6 pages, and one more at either end
  plan = plan_memory(layout, {.page_tokens = 16, .max_tokens = 64, .max_seqs = 4, .max_rows = 32});
  EXPECT_EQ(plan.group[1].n_units, 1 + 4);
}

TEST(MemoryPlan, RecurrentModelsHaveNoTokenLimit) {
  MemoryPlan plan = plan_memory(layout_of({{Kind::slot, 1 << 20}}), {.max_seqs = 8, .scratch = 4, .snapshots = 3});
  EXPECT_EQ(plan.n_tokens, MemoryPlan::unbounded);
  EXPECT_EQ(plan.group[0].n_units, 1 + 8 * 5 + 3);
}

TEST(MemoryPlan, SnapshotsTakeAtMostAQuarter) {
  MemoryPlan plan =
      plan_memory(layout_of({{Kind::paged, 64}, {Kind::slot, 1 << 20}}), {.page_tokens = 16, .bytes = 16 << 20, .max_seqs = 8});
  EXPECT_EQ(plan.group[1].n_units, 1 + 8 + 4);
}

TEST(MemoryPlan, SaysWhatDoesNotFitAndWhatWould) {
  StateLayout layout = layout_of({{Kind::paged, 1 << 10}, {Kind::slot, 1 << 20}});
  StateLimits limits{.page_tokens = 16, .bytes = 12 << 20, .max_tokens = 8192 - 16, .max_seqs = 8, .snapshots = 0};
  std::string error = error_of(layout, limits);
  for (const char* part : {"17.0 MiB", "8.0 MiB in pages for 8176 tokens", "9.0 MiB in slots for 8 sequences", "12.0 MiB are left",
                           "at most 3056 tokens", "at most 3 sequences"})
    EXPECT_TRUE(contains(error, part)) << part << " is not in: " << error;
  limits.max_seqs = 3;
  EXPECT_EQ(error_of(layout, limits), "");
  limits.max_seqs = 8;
  limits.max_tokens = 3056;
  EXPECT_EQ(error_of(layout, limits), "");
  limits.max_tokens = 3056 + 1;
  EXPECT_NE(error_of(layout, limits), "");
}

TEST(MemoryPlan, RefusesNonsense) {
  StateLayout layout = layout_of({{Kind::paged, 64}});
  EXPECT_TRUE(contains(error_of(layout, {.page_tokens = 24, .max_tokens = 100}), "24"));
  EXPECT_TRUE(contains(error_of(layout, {.page_tokens = 16}), "64 bytes a token"));
  EXPECT_TRUE(contains(error_of(layout, {.page_tokens = 16, .max_tokens = 100, .max_seqs = 0}), "0 sequences"));
}

TEST(StateStore, OwnsZeroedUnits) {
  MemoryPlan plan = plan_memory(layout_of({{Kind::paged, 64}, {Kind::slot, 100}}), {.page_tokens = 16, .max_tokens = 64, .max_seqs = 2});
  StateStore store(plan);
  const StateMemory& memory = store.memory();
  ASSERT_EQ(memory.group.size(), 2u);
  EXPECT_EQ(memory.group[0].page_tokens, 16);
  EXPECT_EQ(memory.group[1].page_tokens, 0);
  EXPECT_EQ(memory.group[1].unit_bytes, 128);
  for (auto& g : memory.group)
    for (int64_t i = 0; i < g.n_units * g.unit_bytes; i++) ASSERT_EQ(g.base[i], std::byte{0});
}

}  // namespace
}  // namespace mr
