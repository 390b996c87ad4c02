// What the GPU makes of a model's sizes is decided without a GPU.
#include <gtest/gtest.h>

#include "backend/cuda/choices.h"

namespace mr::cuda {

// Llama 3.1 8B: 32 layers of 32 query heads on 8 K/V heads of 128.
static ModelFacts llama_8b() {
  ModelFacts facts{.n_layers = 32, .parameters = 8'030'261'248, .plain_blocks = true};
  facts.attention.assign(32, {.heads = 32, .kv_heads = 8, .head_dim = 128});
  return facts;
}

TEST(CudaChoices, large_plain_layers_are_chained_and_share_prefixes) {
  Choices c = choices_for(llama_8b());
  EXPECT_EQ(c.kv_heads, 8);
  EXPECT_EQ(c.group, 4);
  EXPECT_TRUE(c.share_prefixes);
  EXPECT_EQ(c.chain_rows, 16);
}

TEST(CudaChoices, small_layers_or_other_blocks_go_kernel_by_kernel) {
  ModelFacts small = llama_8b();
  small.parameters = 1'235'814'400;
  EXPECT_EQ(choices_for(small).chain_rows, 1);
  ModelFacts experts = llama_8b();
  experts.plain_blocks = false;
  EXPECT_EQ(choices_for(experts).chain_rows, 1);
  EXPECT_EQ(choices_for({.n_layers = 24, .parameters = 130'000'000}).chain_rows, 1);
}

TEST(CudaChoices, without_hopper_operations_run_one_by_one) {
  const Choices c = plain_choices(choices_for(llama_8b()));
  EXPECT_FALSE(c.marks);
  EXPECT_FALSE(c.share_prefixes);
  EXPECT_EQ(c.chain_rows, 0);
  EXPECT_EQ(c.group, 4);
}

TEST(CudaChoices, prefixes_are_shared_only_where_every_layer_can) {
  auto shares = [](auto change) {
    ModelFacts facts = llama_8b();
    change(facts);
    return choices_for(facts).share_prefixes;
  };
  EXPECT_FALSE(shares([](ModelFacts& f) { f.attention[7].window = 4096; }));
  EXPECT_FALSE(shares([](ModelFacts& f) { f.attention[31].head_dim = 96; }));
  EXPECT_FALSE(shares([](ModelFacts& f) { f.attention[3].heads = 72; }));
  EXPECT_FALSE(shares([](ModelFacts& f) { f.kv_dtype = DType::f16; }));
  EXPECT_FALSE(shares([](ModelFacts& f) { f.attention.clear(); }));
  EXPECT_TRUE(shares([](ModelFacts& f) { f.attention[3].heads = 64; }));
}

}  // namespace mr::cuda
