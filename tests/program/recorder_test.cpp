#include "core/error.h"
#include "program/made.h"

namespace mr::test {
namespace {

TEST(Recorder, FoldsAnAddIntoTheProductThatWasJustRecorded) {
  Made m;
  const Value x = m.input(32, ValueType::f32);
  EXPECT_EQ(m.r.add(x, m.linear(m.norm(x), 32)), x);
  ASSERT_EQ(m.program.whole.ops.size(), 2u);
  const LinearOp& linear = *m.program.whole.ops[1].get<LinearOp>();
  EXPECT_EQ(linear.out, x);
  EXPECT_EQ(linear.residual, x);
}

TEST(Recorder, FoldsAnAddIntoProductsSideBySide) {
  Made m;
  const Value x = m.input(32, ValueType::f32), y = m.input(8);
  const auto& weights = m.keep(std::vector<Weight>{{&get_codec("f32"), 20, 8}, {&get_codec("f32"), 12, 8}});
  m.r.add(x, m.r.linear(y, weights));
  ASSERT_EQ(m.program.whole.ops.size(), 2u);
  EXPECT_EQ(m.program.whole.ops[0].get<LinearOp>()->residual, x.columns(0, 20));
  EXPECT_EQ(m.program.whole.ops[1].get<LinearOp>()->out, x.columns(20, 12));
}

TEST(Recorder, AddsByItselfWhateverRoundsOtherwise) {
  auto adds = [](auto record) {
    Made m;
    record(m);
    return places_of<AddOp>(m.program.whole).size();
  };
  EXPECT_EQ(adds([](Made& m) { m.r.add(m.input(32, ValueType::f32), m.linear(m.input(8), 32), 0.5f); }), 1u);  // a scale
  EXPECT_EQ(adds([](Made& m) { m.r.add(m.input(32), m.linear(m.input(8), 32)); }), 1u);                        // what it adds to is rounded
  EXPECT_EQ(adds([](Made& m) { m.r.add(m.input(16, ValueType::f32), m.linear(m.input(8), 32).columns(0, 16)); }), 1u);  // a part
  EXPECT_EQ(adds([](Made& m) {
              const Value y = m.linear(m.input(8), 32);
              m.r.activate(y, Activation::silu);
              m.r.add(m.input(32, ValueType::f32), y);
            }),
            1u);
  EXPECT_EQ(adds([](Made& m) {  // a product of what it would overwrite
              const Value x = m.input(32, ValueType::f32);
              m.r.add(x, m.linear(x, 32));
            }),
            1u);
  EXPECT_EQ(adds([](Made& m) {  // a product that adds already
              const Value x = m.input(32, ValueType::f32);
              m.r.add(x, m.linear(m.input(8), 32));
              m.r.add(m.input(32, ValueType::f32), x);
            }),
            1u);
}

// With data or, as in an outline, without.
TEST(Recorder, GivesEachPartItsOwnPartOfABias) {
  std::vector<float> values(32);
  for (float* data : {values.data(), static_cast<float*>(nullptr)}) {
    Made m;
    const auto& weights = m.keep(std::vector<Weight>{{&get_codec("f32"), 20, 8}, {&get_codec("f32"), 12, 8}});
    m.r.linear(m.input(8), weights, {.bias = view(data, DType::f32, {32})});
    const Tensor first = m.program.whole.ops[0].get<LinearOp>()->bias, second = m.program.whole.ops[1].get<LinearOp>()->bias;
    EXPECT_EQ(first.size(), 20);
    EXPECT_EQ(second.size(), 12);
    EXPECT_EQ(first.data, data);
    EXPECT_EQ(second.data, data ? data + 20 : nullptr);
  }
}

TEST(Recorder, RecordsAnglesOnce) {
  Made m;
  const RopeTable one{.dim = 4}, other{.dim = 8};
  const Value a = m.r.angles(one), b = m.r.angles(other);
  EXPECT_EQ(m.r.angles(one), a);
  EXPECT_NE(a, b);
  EXPECT_EQ(places_of<AnglesOp>(m.program.whole).size(), 2u);
}

TEST(Recorder, NamesAWeightThatDoesNotFit) {
  Made m;
  try {
    m.r.linear(m.input(8), {&m.weight(4, 9), 1}, {.name = "gate"});
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("'gate' [4, 9]"), std::string::npos) << e.what();
  }
}

TEST(Recorder, RowsOfExpertsAreTimesTheirNumber) {
  Made m;
  const Value x = m.embed();
  m.moe(x);
  const OpList& list = m.program.whole;
  auto rows = [&](Value v) { return m.program.values[size_t(v.id)].rows.times; };
  for (int i : places_of<GroupedLinearOp>(list)) EXPECT_EQ(rows(list.ops[size_t(i)].get<GroupedLinearOp>()->out), 2);
  EXPECT_EQ(rows(list.ops[size_t(places_of<CombineOp>(list)[0])].get<CombineOp>()->out), 1);
}

}  // namespace
}  // namespace mr::test
