// Marks of small programs, as rule@first+count.
#include <fmt/format.h>

#include "program/made.h"

namespace mr::test {
namespace {

std::vector<std::string> marks(Made& m) {
  if (!m.program.logits) m.program.logits = m.input(1, ValueType::f32);
  fuse(m.program, m.program.whole);
  std::vector<std::string> all;
  for (const Mark& mark : m.program.whole.marks) all.push_back(fmt::format("{}@{}+{}", name_of(mark.rule), mark.first, mark.count));
  return all;
}
using Marks = std::vector<std::string>;

TEST(Fuse, MarksAFeedForwardLongestFirst) {
  Made m;
  m.mlp(m.input(32, ValueType::f32));  // norm, linear, gate, linear
  EXPECT_EQ(marks(m), (Marks{"gate_linear@0+4", "linear_gate@0+3", "norm_linear@0+2", "gate_linear@1+3", "linear_gate@1+2"}));
}

TEST(Fuse, MarksNoNormThatIsReadTwice) {
  Made m;
  const Value y = m.norm(m.input(32, ValueType::f32));
  m.linear(y, 8);
  m.linear(y, 8);
  EXPECT_EQ(marks(m), Marks{});
}

TEST(Fuse, MarksNoGateWhoseHalvesAreReadAgain) {
  Made m;
  const Value h = m.linear(m.input(32), 16);
  m.r.gate(h.columns(0, 8), h.columns(8, 8), Activation::silu);
  m.r.activate(h.columns(0, 8), Activation::silu);
  EXPECT_EQ(marks(m), Marks{});
}

TEST(Fuse, MarksNoGateWithABias) {
  Made m;
  const Value h = m.r.linear(m.input(32), {&m.weight(16, 32), 1}, {.bias = view(&m, DType::f32, {16})});
  m.r.gate(h.columns(0, 8), h.columns(8, 8), Activation::silu);
  EXPECT_EQ(marks(m), Marks{});
}

TEST(Fuse, MarksAttention) {
  Made m;
  m.attention(m.embed(), m.kv());  // embed, norm, linear, angles... the order of recording is that of what asks first
  const int rope = places_of<RopeOp>(m.program.whole)[0], norm = places_of<NormOp>(m.program.whole)[0];
  EXPECT_EQ(marks(m),
            (Marks{fmt::format("norm_linear@{}+2", norm), fmt::format("attend_linear@{}+5", rope), fmt::format("attend@{}+4", rope)}));
}

TEST(Fuse, MarksAttentionWithoutRopeAndOfAnothersKeys) {
  Made m;
  const PagedKv& kv = m.kv();
  const Value qkv = m.input(64), q = qkv.columns(0, 32).as_heads(4);
  m.r.store_kv(qkv.columns(32, 16).as_heads(2), qkv.columns(48, 16).as_heads(2), kv);
  m.r.attend(q, kv, {.heads = 4});
  const Value angles = m.input(8, ValueType::f32);
  m.r.rope(m.input(32).as_heads(4), angles, false);
  const RopeOp& rope = *m.program.whole.ops[2].get<RopeOp>();
  m.linear(m.r.attend(rope.x, kv, {.heads = 4}), 8);
  EXPECT_EQ(marks(m), (Marks{"attend@0+2", "attend_linear@2+3", "attend@2+2", "attend_linear@3+2"}));
}

TEST(Fuse, MarksNoAttentionWhoseKeysTurnByOtherAngles) {
  Made m;
  const PagedKv& kv = m.kv();
  const Value qkv = m.input(64), q = qkv.columns(0, 32).as_heads(4), k = qkv.columns(32, 16).as_heads(2);
  m.r.rope(q, m.input(8, ValueType::f32), false);
  m.r.rope(k, m.input(8, ValueType::f32), false);
  m.r.store_kv(k, qkv.columns(48, 16).as_heads(2), kv);
  m.r.attend(q, kv, {.heads = 4});
  for (const std::string& mark : marks(m)) EXPECT_EQ(mark.find("@0"), std::string::npos) << mark;
}

TEST(Fuse, MarksMamba) {
  for (bool norms : {false, true}) {
    Made m;
    m.mamba(m.input(32, ValueType::f32), norms);  // norm, linear, conv, linear, [3 norms,] linear, softplus, scan, gate, linear
    const int n = norms ? 3 : 0;
    const size_t values = m.program.values.size();
    EXPECT_EQ(marks(m), (Marks{"linear_conv@0+3", "norm_linear@0+2", fmt::format("selective_scan@3+{}", 5 + n),
                               fmt::format("gated_scan@{}+3", 5 + n)}));
    const Mark& select = m.program.whole.marks[2];
    ASSERT_GE(select.scratch, int(values));  // a value of its own, in f32
    EXPECT_EQ(m.program.values[size_t(select.scratch)].type, ValueType::f32);
    EXPECT_EQ(m.program.values[size_t(select.scratch)].cols, 20);
  }
}

TEST(Fuse, MarksExperts) {
  Made m;
  m.moe(m.input(32, ValueType::f32));  // norm, linear, route, two products, gate, product, combine, add
  EXPECT_EQ(marks(m), (Marks{"route@0+3", "experts_gate@3+3", "experts_combine@6+3"}));
}

TEST(Fuse, KnowsTheNormThatComesNext) {
  Made m;
  const Value x = m.input(32, ValueType::f32);
  m.mlp(x);  // 0 to 3
  m.mlp(x);  // 4 to 7
  find_next_norms(m.program.whole);
  EXPECT_EQ(m.program.whole.next_norm, (std::vector<int>{-1, -1, -1, 4, -1, -1, -1, -1}));
}

TEST(Fuse, KnowsNoNextNormWhereSomethingComesBetween) {
  Made m;
  const Value x = m.input(32, ValueType::f32);
  m.mlp(x);
  m.r.add(x, m.input(32));
  m.mlp(x);
  find_next_norms(m.program.whole);
  EXPECT_EQ(m.program.whole.next_norm[3], -1);
  EXPECT_EQ(m.program.whole.next_norm[4], 5);  // the add's
}

}  // namespace
}  // namespace mr::test
