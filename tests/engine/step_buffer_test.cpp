// What is written into a step buffer is what a batch sees, also after its bytes were moved elsewhere.
#include <gtest/gtest.h>

#include <cstring>

#include "engine/step_buffer.h"

namespace mr {
namespace {

TEST(StepBuffer, AViewOfMovedBytesReadsTheSame) {
  StepBuffer buffer;
  for (int n : {3, 200, 5}) {  // grows, and is used again for less
    std::vector<int> units = {2 * n, -1};
    StepArrays& a = buffer.layout({.n_tokens = n, .n_seqs = 2, .n_out = 2, .n_edits = 3, .trees = n == 5, .n_units = units});
    for (int i = 0; i < n; i++) {
      a.token[i] = 10 + i;
      a.position[i] = 20 + i;
      a.group[1].dst[i] = -i;
    }
    a.row_begin[0] = 0;
    a.row_begin[1] = 1;
    a.row_begin[2] = n;
    for (int s = 0; s < 2; s++) {
      a.context[s] = 30 + s;
      a.prompt_len[s] = 40 + s;
      a.corner[s] = s ? Corner::full : Corner::causal;
      a.out_row[s] = s;
      a.out[s] = s ? Out::logits : Out::token;
      a.sample[s] = {.seed = uint64_t(50 + s), .edit_begin = s, .n_edits = 1};
      a.group[1].src[s] = 60 + s;
    }
    for (int i = 0; i < 3; i++) a.edit[i] = {.token = 70 + i};
    for (int i = 0; i < 2 * n; i++) a.group[0].unit[i] = 80 + i;
    a.group[0].begin[0] = 0;
    a.group[0].begin[1] = n;
    a.group[0].begin[2] = 2 * n;
    if (n == 5)
      for (int i = 0; i < n; i++) {
        a.parent[i] = i - 1;
        a.ancestors[i] = 1ull << i;
      }

    Buffer elsewhere(buffer.bytes().size());
    std::memcpy(elsewhere.data(), buffer.bytes().data(), buffer.bytes().size());
    std::memset(const_cast<std::byte*>(buffer.bytes().data()) + sizeof(StepHeader), 0xEE, buffer.bytes().size() - sizeof(StepHeader));

    std::vector<GroupTable> tables;
    Batch b = view({elsewhere.data(), elsewhere.size()}, tables);
    EXPECT_EQ(b.n_tokens, n);
    EXPECT_EQ(b.n_seqs, 2);
    EXPECT_EQ(b.n_out, 2);
    ASSERT_EQ(b.group.size(), 2u);
    EXPECT_FALSE(b.group[0].src);
    EXPECT_FALSE(b.group[1].unit);
    EXPECT_EQ(b.parent != nullptr, n == 5);
    for (int i = 0; i < n; i++) {
      EXPECT_EQ(b.token[i], 10 + i);
      EXPECT_EQ(b.position[i], 20 + i);
      EXPECT_EQ(b.group[1].dst[i], -i);
      if (n != 5) continue;
      EXPECT_EQ(b.parent[i], i - 1);
      EXPECT_EQ(b.ancestors[i], 1ull << i);
    }
    EXPECT_EQ(b.rows(0), 1);
    EXPECT_EQ(b.rows(1), n - 1);
    for (int s = 0; s < 2; s++) {
      EXPECT_EQ(b.context[s], 30 + s);
      EXPECT_EQ(b.prompt_len[s], 40 + s);
      EXPECT_EQ(b.corner[s], s ? Corner::full : Corner::causal);
      EXPECT_EQ(b.out_row[s], s);
      EXPECT_EQ(b.out[s], s ? Out::logits : Out::token);
      EXPECT_EQ(b.sample[s].seed, uint64_t(50 + s));
      EXPECT_EQ(b.group[1].src[s], 60 + s);
    }
    for (int i = 0; i < 3; i++) EXPECT_EQ(b.edit[i].token, 70 + i);
    for (int i = 0; i < 2 * n; i++) EXPECT_EQ(b.group[0].unit[i], 80 + i);
  }
}

}  // namespace
}  // namespace mr
