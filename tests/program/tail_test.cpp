// After the last operation that reads rows, a tail has those of the outputs alone.
#include <algorithm>
#include <tuple>

#include "core/error.h"
#include "program/made.h"

namespace mr::test {
namespace {

// Everything before the cut is as it was; after it all rows are outputs', and the values that cross are gathered first.
void expect_tail(const Program& p, size_t cut, const std::vector<Value>& crossing) {
  const std::vector<Op>&whole = p.whole.ops, &tail = p.tail.ops;
  for (size_t i = 0; i < cut; i++) {
    EXPECT_EQ(tail[i].kind.index(), whole[i].kind.index()) << i;
    EXPECT_EQ(tail[i].rows, Rows::Base::tokens) << i;
  }
  std::vector<Value> gathered;
  size_t i = cut;
  for (; i < tail.size() && tail[i].get<GatherOp>(); i++) gathered.push_back(tail[i].get<GatherOp>()->x);
  EXPECT_EQ(gathered.size(), crossing.size());
  for (const Value& v : crossing) EXPECT_EQ(std::count(gathered.begin(), gathered.end(), v), 1) << "value " << v.id << " from " << v.first;
  const size_t gathers = places_of<GatherOp>(p.whole).size();
  EXPECT_EQ(tail.size(), whole.size() + crossing.size() - gathers);
  for (; i < tail.size(); i++) {
    EXPECT_FALSE(tail[i].get<GatherOp>()) << i;
    EXPECT_EQ(tail[i].rows, Rows::Base::outputs) << i;
    for (auto [v, access] : touched(tail[i])) {
      const ValueInfo& info = p.values[size_t(v.id)];
      EXPECT_EQ(info.rows.base, Rows::Base::outputs) << i;
      EXPECT_GE(v.first, 0) << i;
      EXPECT_LE(v.first + v.cols, info.cols) << i;
    }
  }
}

size_t last_reader(const Program& p) {  // of rows; what follows it
  size_t cut = p.whole.ops.size();
  while (!reads_rows(p.whole.ops[cut - 1].kind)) cut--;
  return cut;
}

TEST(Tail, GathersWhatAttentionGaveAndTheResidual) {
  Made m;
  const Value x = m.embed();
  for (int layer = 0; layer < 2; layer++) {
    m.attention(x, m.kv());
    m.mlp(x);
  }
  m.output(x);
  finish(m.program, {});
  const size_t cut = last_reader(m.program);
  const AttendOp* attend = m.program.whole.ops[cut - 1].get<AttendOp>();
  ASSERT_TRUE(attend);
  expect_tail(m.program, cut, {x, attend->out.as_matrix()});
}

// Of a fused projection only the columns that are read after the cut. Where a kernel may gate what a scan gives, both stay together.
TEST(Tail, GathersColumnsThatCross) {
  for (bool norms : {false, true}) {
    Made marked, plain;
    for (Made* m : {&marked, &plain}) {
      const Value x = m->embed();
      m->mamba(x, norms);
      m->output(x);
      finish(m->program, {.fuse = m == &marked});
    }
    const size_t cut = last_reader(plain.program);
    const Value x = plain.program.whole.ops[0].get<EmbedOp>()->out;
    const DiagScanOp* scan = plain.program.whole.ops[cut - 1].get<DiagScanOp>();
    const GateOp* gate = plain.program.whole.ops[cut].get<GateOp>();
    ASSERT_TRUE(scan && gate);
    EXPECT_EQ(gate->gate.first, 40);
    expect_tail(marked.program, cut + 1, {x, scan->out});
    expect_tail(plain.program, cut, {x, scan->out, gate->gate});
    const GateOp* in_tail = plain.program.tail.ops[cut + 3].get<GateOp>();
    ASSERT_TRUE(in_tail);
    EXPECT_EQ(in_tail->gate.first, 0);  // of the value that holds them alone
    EXPECT_EQ(in_tail->gate.cols, 40);
    EXPECT_EQ(plain.program.values[size_t(in_tail->gate.id)].cols, 40);
  }
}

// Layers that keep nothing still read what others have kept.
TEST(Tail, ComesAfterTheLastAttentionThoughItStoresNothing) {
  Made m;
  const Value x = m.embed();
  const PagedKv& kv = m.kv();
  m.attention(x, kv);
  m.mlp(x);
  m.attention(x, kv, false);
  m.moe(x);
  m.output(x);
  finish(m.program, {});
  const size_t cut = last_reader(m.program);
  const AttendOp* attend = m.program.whole.ops[cut - 1].get<AttendOp>();
  ASSERT_TRUE(attend);
  EXPECT_FALSE(m.program.whole.ops[cut - 2].get<StoreKvOp>());
  expect_tail(m.program, cut, {x, attend->out.as_matrix()});
  EXPECT_EQ(places_of<StoreKvOp>(m.program.tail).size(), 1u);
  EXPECT_EQ(places_of<AttendOp>(m.program.tail).size(), 2u);
}

TEST(Tail, RowsOfExpertsDoNotCross) {
  Made m;
  const Value x = m.embed();
  const auto& experts = m.keep(std::vector<Weight>(4, Weight{&get_codec("f32"), 24, Made::kDim}));
  const auto [expert, weight] = m.r.route(m.linear(x, 4, ValueType::f32), 2, true);
  const Value up = m.r.grouped_linear(x, experts, expert, "");
  m.attention(x, m.kv());
  m.r.add(m.linear(x, 24, ValueType::f32), m.r.combine(up, weight));
  m.output(x);
  EXPECT_THROW(finish(m.program, {}), Error);
}

// In the tail gathered rows are the rows they came from, as long as both stay equal; else all rows are computed up to there.
TEST(Tail, GathersWhereOneOfTwoEqualsChanges) {
  using Change = void (*)(Made&, Value x, Value out);
  struct Case {
    Change behind;
    bool alias;
  };
  const Case cases[] = {
      {[](Made&, Value, Value) {}, true},
      {[](Made& m, Value, Value out) { m.r.activate(out, Activation::silu); }, true},  // nobody reads x again
      {[](Made& m, Value x, Value) { m.norm(x); }, true},                              // nobody changes either
      {[](Made& m, Value x, Value) { m.r.activate(x, Activation::silu); }, false},
      {[](Made& m, Value x, Value out) {
         m.r.activate(out, Activation::silu);
         m.norm(x);
       },
       false},
      {[](Made& m, Value x, Value out) {
         m.norm(x);
         m.r.activate(out, Activation::silu);
         m.r.gather(x);
       },
       false},
  };
  for (const Case& c : cases) {
    Made m;
    const Value x = m.embed();
    m.attention(x, m.kv());
    m.mlp(x);
    const Value out = m.r.gather(x);
    c.behind(m, x, out);
    m.program.logits = m.linear(out, 100, ValueType::f32);
    finish(m.program, {});
    const size_t reader = last_reader(m.program), gather = size_t(places_of<GatherOp>(m.program.whole)[0]);
    const bool alias = m.program.tail.ops[reader].get<GatherOp>() != nullptr;  // of what crosses, instead of the list's own
    EXPECT_EQ(alias, c.alias) << &c - cases;
    if (alias) continue;
    const GatherOp* same = m.program.tail.ops[gather].get<GatherOp>();
    ASSERT_TRUE(same) << &c - cases;
    EXPECT_EQ(same->out, out);
    EXPECT_EQ(same->x, x);
  }
}

TEST(Tail, IsTakenWhereHalfOfTheRowsOrFewerAreWanted) {
  Made m;
  const Value x = m.embed();
  m.attention(x, m.kv());
  m.output(x);
  finish(m.program, {});
  const Program& p = m.program;
  for (auto [tokens, outputs, tail] : {std::tuple{1, 1, false},
                                       {1, 0, true},
                                       {2, 1, true},
                                       {3, 2, false},
                                       {512, 256, true},
                                       {512, 257, false},
                                       {1, 8, false} /* several choices of one row */})
    EXPECT_EQ(&p.list(tokens, outputs), tail ? &p.tail : &p.whole) << tokens << " and " << outputs;
}

}  // namespace
}  // namespace mr::test
