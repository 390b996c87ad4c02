// Values that are alive at the same time never overlap, and the workspace at the limits holds every step within them.
#include <fmt/format.h>

#include <optional>
#include <random>

#include "program/lives.h"
#include "program/made.h"

namespace mr::test {
namespace {

struct Range {
  const std::byte *begin, *end;
  bool meets(const Range& o) const { return begin < o.end && o.begin < end; }
};

// Where a value lies in a step of so many rows.
std::optional<Range> range_of(const Bound& at, int value) {
  const Program& p = at.program();
  if (at.list().slot_of[size_t(value)] < 0) return std::nullopt;
  const Tensor t = at(Value{value, 0, p.values[size_t(value)].cols});
  return Range{t.as<std::byte>(), t.as<std::byte>() + t.bytes()};
}

void expect_no_overlap(const Program& p, const OpList& list, const std::string& what) {
  const std::vector<Alive> when = alive(p, list);
  for (size_t v = 0; v < when.size(); v++) EXPECT_EQ(bool(when[v]), list.slot_of[v] >= 0) << what << ", value " << v;
  for (auto [tokens, outputs] : {std::pair{1, 1}, {1, 5}, {7, 7}, {40, 3}, {40, 0}, {3, 2}}) {
    Arena arena(size_t(list.bytes(tokens, outputs)) + 64);
    const Bound at(p, list, tokens, outputs, arena);
    std::vector<std::optional<Range>> where;
    for (int v = 0; v < int(when.size()); v++) where.push_back(range_of(at, v));
    for (size_t a = 0; a < when.size(); a++)
      for (size_t b = 0; b < a; b++)
        EXPECT_FALSE(when[a].meets(when[b]) && where[a]->meets(*where[b]))
            << what << ": values " << a << " and " << b << " in a step of " << tokens << " tokens and " << outputs << " outputs";
  }
}

// Layers in an order that the seed draws.
void random_model(Made& m, std::mt19937& random) {
  const Value x = m.embed();
  const PagedKv& kv = m.kv();
  for (int layer = 0, n = 1 + int(random() % 6); layer < n; layer++) {
    switch (random() % 5) {
      case 0:
        m.attention(x, kv);
        break;
      case 1:
        m.attention(x, kv, false);
        break;
      case 2:
        m.mamba(x, random() % 2);
        break;
      case 3:
        m.moe(x);
        break;
      default:
        m.mlp(x);
    }
    if (random() % 3 == 0) m.r.add(x, m.linear(m.norm(x), int64_t(32)), 0.5f);
  }
  m.output(x);
}

TEST(Slots, HoldValuesThatDoNotLiveAtTheSameTime) {
  std::mt19937 random(7);
  for (int i = 0; i < 30; i++) {
    const auto seed = uint32_t(random());
    int64_t least = 0;
    for (bool fuses : {false, true})
      for (bool shares : {false, true}) {
        Made m;
        std::mt19937 same(seed);
        random_model(m, same);
        finish(m.program, {fuses, shares});
        expect_no_overlap(m.program, m.program.whole, fmt::format("model {}", i));
        expect_no_overlap(m.program, m.program.tail, fmt::format("model {}, its tail", i));
        const int64_t bytes = m.program.workspace(100, 10);
        if (!shares) least = bytes;
        EXPECT_LE(bytes, least) << i;
      }
  }
}

TEST(Slots, OfALayerAreReusedByTheNext) {
  auto bytes = [](int layers) {
    Made m;
    const Value x = m.embed();
    for (int i = 0; i < layers; i++) {
      m.attention(x, m.kv());
      m.mlp(x);
    }
    m.output(x);
    finish(m.program, {});
    return m.program.workspace(64, 64);
  };
  EXPECT_EQ(bytes(2), bytes(9));
}

TEST(Slots, WorkspaceAtTheLimitsHoldsEveryStep) {
  std::mt19937 random(3);
  for (int i = 0; i < 40; i++) {
    Made m;
    random_model(m, random);
    finish(m.program, {});
    for (int j = 0; j < 20; j++) {
      const int64_t most = 1 + random() % 600, most_out = 1 + random() % 80, workspace = m.program.workspace(most, most_out);
      for (int k = 0; k < 50; k++) {
        const int64_t tokens = 1 + random() % uint32_t(most), outputs = random() % uint32_t(most_out + 1);
        ASSERT_LE(m.program.list(tokens, outputs).bytes(tokens, outputs), workspace)
            << tokens << " of " << most << " tokens, " << outputs << " of " << most_out << " outputs";
      }
      ASSERT_LE(m.program.list(most, most_out).bytes(most, most_out), workspace);
    }
  }
}

// What nobody writes is there before the list runs.
TEST(Slots, KeepAnInputFromTheBeginning) {
  Made m;
  const Value x = m.embed(), late = m.input(32);
  for (int i = 0; i < 4; i++) m.mlp(x);
  m.r.add(x, late);
  m.output(x);
  finish(m.program, {});
  const int slot = m.program.whole.slot_of[size_t(late.id)];
  const std::vector<Alive> when = alive(m.program, m.program.whole);
  for (int v = 0; v < int(m.program.values.size()); v++) {
    if (v == late.id || m.program.whole.slot_of[size_t(v)] != slot) continue;
    EXPECT_GT(when[size_t(v)].first, when[size_t(late.id)].last) << v;
  }
}

TEST(Slots, AreAlignedAndAsLargeAsTheirWidestValue) {
  const Slot slot{100, 1000};
  EXPECT_EQ(slot.bytes(0, 0), 0);
  EXPECT_EQ(slot.bytes(1, 0), 256);
  EXPECT_EQ(slot.bytes(30, 1), 3072);
  EXPECT_EQ(slot.bytes(3, 2), 2048);
}

}  // namespace
}  // namespace mr::test
