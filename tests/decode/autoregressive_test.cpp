#include <gtest/gtest.h>

#include "decode/decoding.h"

namespace mr {
namespace {

TEST(Autoregressive, PlansWhatTheStateLacksAndTakesTheLastRowsToken) {
  auto decoding = make_autoregressive();
  SequenceState state;
  state.tokens = {5, 6, 7, 8};
  RowPlan plan = decoding->plan(state);
  EXPECT_EQ(std::vector<int32_t>(plan.tokens.begin(), plan.tokens.end()), state.tokens);
  EXPECT_EQ(plan.wants_logits_from, 3);
  EXPECT_EQ(plan.corner, Corner::causal);
  EXPECT_FALSE(plan.atomic);

  state.committed = 3;  // a chunk of the prompt was computed
  plan = decoding->plan(state);
  ASSERT_EQ(plan.tokens.size(), 1u);
  EXPECT_EQ(plan.tokens[0], 8);
  EXPECT_EQ(plan.wants_logits_from, 0);

  std::vector<Sampled> sampled = {{.token = 9, .logprob = -1, .top = {}}};
  Absorbed absorbed = decoding->absorb(state, 1, sampled);
  EXPECT_EQ(absorbed.n_rows, 1);
  EXPECT_TRUE(absorbed.path.empty());
  ASSERT_EQ(absorbed.emit.size(), 1u);
  EXPECT_EQ(absorbed.emit[0].token, 9);
  EXPECT_EQ(decoding->absorb(state, 4, sampled).n_rows, 4);  // a whole prompt is kept
}

}  // namespace
}  // namespace mr
