#include "program/walk.h"

#include <fmt/format.h>

#include "program/made.h"

namespace mr::test {
namespace {

// What a walk does, in order: "?rule" an offer, "+rule" one that was taken, "3" an operation by itself.
template <class Takes>
std::vector<std::string> walked(const Program& p, const OpList& list, int64_t tokens, int64_t outputs, Takes takes) {
  Arena arena(size_t(list.bytes(tokens, outputs)) + 64);
  const Bound at(p, list, tokens, outputs, arena);
  std::vector<std::string> all;
  int done = 0;
  walk(
      at,
      [&](const Mark& m) {
        const bool take = takes(m);
        all.push_back(fmt::format("{}{}", take ? "+" : "?", name_of(m.rule)));
        return take;
      },
      [&](int i) { all.push_back(std::to_string(i)); },
      [&](int first, int count) {
        EXPECT_GE(first, done);
        done = first + count;
      });
  return all;
}
using Walk = std::vector<std::string>;

// norm, linear, gate, linear; gather, norm, linear
void record(Made& m) {
  const Value x = m.input(32, ValueType::f32);
  m.mlp(x);
  m.output(x);
  finish(m.program, {});
}

TEST(Walk, OffersTheLongestFirstAndOnly) {
  Made m;
  record(m);
  const OpList& list = m.program.whole;
  EXPECT_EQ(walked(m.program, list, 2, 2, [](const Mark&) { return true; }), (Walk{"+gate_linear", "4", "+norm_linear"}));
}

TEST(Walk, OffersShorterOnesWhereLongerOnesAreRefused) {
  Made m;
  record(m);
  const OpList& list = m.program.whole;
  EXPECT_EQ(walked(m.program, list, 2, 2, [](const Mark& mark) { return mark.rule == Rule::norm_linear; }),
            (Walk{"?gate_linear", "?linear_gate", "+norm_linear", "2", "3", "4", "+norm_linear"}));
  EXPECT_EQ(
      walked(m.program, list, 2, 2, [](const Mark& mark) { return mark.rule == Rule::linear_gate && mark.count == 2; }),
      (Walk{"?gate_linear", "?linear_gate", "?norm_linear", "0", "?gate_linear", "+linear_gate", "3", "4", "?norm_linear", "5", "6"}));
}

TEST(Walk, RunsAllOperationsWhereEverythingIsRefused) {
  Made m;
  record(m);
  Walk all = walked(m.program, m.program.whole, 2, 2, [](const Mark&) { return false; });
  std::erase_if(all, [](const std::string& s) { return s[0] == '?'; });
  EXPECT_EQ(all, (Walk{"0", "1", "2", "3", "4", "5", "6"}));
}

TEST(Walk, PassesOverOperationsOfNoRows) {
  Made m;
  const Value x = m.embed();
  m.attention(x, m.kv());
  m.mlp(x);
  m.output(x);
  finish(m.program, {});
  const OpList& tail = m.program.list(5, 0);
  ASSERT_EQ(&tail, &m.program.tail);
  Walk all = walked(m.program, tail, 5, 0, [](const Mark&) { return false; });
  std::erase_if(all, [](const std::string& s) { return s[0] == '?'; });
  EXPECT_EQ(all.size(), size_t(places_of<AttendOp>(tail)[0] + 1));  // up to the attention, and nothing after it
  for (size_t i = 0; i < all.size(); i++) EXPECT_EQ(all[i], std::to_string(i));
}

}  // namespace
}  // namespace mr::test
