#include "state/state_manager.h"

#include <gtest/gtest.h>

#include <numeric>

namespace mr {
namespace {

using Kind = StateSpec::Kind;
constexpr int page = 16;

MemoryPlan plan_of(std::vector<MemoryPlan::GroupPlan> groups) {
  for (auto& g : groups) g.n_units++;  // the reserved one
  return {page, groups, 0, 8};
}
MemoryPlan::GroupPlan full(int64_t n) { return {Kind::paged, 0, 64, n}; }
MemoryPlan::GroupPlan windowed(int window, int64_t n) { return {Kind::paged, window, 64, n}; }
MemoryPlan::GroupPlan slots(int64_t n) { return {Kind::slot, 0, 64, n}; }

std::vector<int32_t> text(int n, int first = 0) {
  std::vector<int32_t> tokens(size_t(n), 0);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

struct Fixture {
  StateManager manager;
  std::vector<UnitCopy> copies;
  std::vector<const SequenceState*> seqs;

  explicit Fixture(const MemoryPlan& plan, bool prefix_cache = true) : manager(plan, {prefix_cache}) {}

  int begin(SequenceState& seq, std::vector<int32_t> tokens, std::string salt = "") {
    seq.tokens = std::move(tokens);
    seq.salt = std::move(salt);
    seqs.push_back(&seq);
    return manager.attach(seq);
  }
  void advance(SequenceState& seq, int rows) {
    copies.clear();
    ASSERT_TRUE(manager.reserve(seq, rows, 0, copies));
    manager.commit(seq, rows);
    manager.check_invariants(seqs);
  }
  void prefill(SequenceState& seq) { advance(seq, int(seq.tokens.size()) - seq.committed); }
  void decode(SequenceState& seq, int n) {
    for (int i = 0; i < n; i++) {
      seq.tokens.push_back(1000 + seq.committed);
      advance(seq, 1);
    }
  }
  // Runs a prompt to its end and lets go of it.
  int visit(std::vector<int32_t> tokens, std::string salt = "") {
    SequenceState seq;
    int hit = begin(seq, std::move(tokens), std::move(salt));
    prefill(seq);
    manager.release(seq);
    seqs.pop_back();
    return hit;
  }
};

TEST(StateManager, ResumesFromWholeBlocksAndLeavesOneTokenToCompute) {
  Fixture f(plan_of({full(20)}));
  EXPECT_EQ(f.visit(text(40)), 0);
  EXPECT_EQ(f.visit(text(40)), 32);
  EXPECT_EQ(f.visit(text(48)), 32);
  EXPECT_EQ(f.visit(text(48)), 32) << "one token must be left";
  EXPECT_EQ(f.visit(text(49)), 48);
  EXPECT_EQ(f.visit(text(16)), 0);
  std::vector<int32_t> other = text(40);
  other[20] = 7;
  EXPECT_EQ(f.visit(other), 16);
  EXPECT_EQ(f.visit(text(40), "tenant"), 0);
  EXPECT_EQ(f.visit(text(40), "tenant"), 32);
  StateStats stats = f.manager.stats();
  EXPECT_EQ(stats.n_lookups, 9);
  EXPECT_EQ(stats.n_hits, 6);
  EXPECT_EQ(stats.hit_tokens, 32 + 32 + 32 + 48 + 16 + 32);
  EXPECT_EQ(stats.group[0].n_used, 0);
  EXPECT_EQ(stats.group[0].n_cached, 3 + 1 + 2);
}

TEST(StateManager, SharesNothingWhenTold) {
  Fixture f(plan_of({full(20), slots(4)}), false);
  f.visit(text(40));
  EXPECT_EQ(f.visit(text(40)), 0);
  EXPECT_EQ(f.manager.stats().group[0].n_free, 20);
  Fixture g(plan_of({full(20)}));
  g.visit(text(40));
  SequenceState seq;
  seq.reuse = false;
  EXPECT_EQ(g.begin(seq, text(40)), 0);
}

TEST(StateManager, ReservesAllOrNothing) {
  Fixture f(plan_of({full(4), slots(1)}));
  SequenceState a, b;
  f.begin(a, text(40));
  ASSERT_TRUE(f.manager.reserve(a, 40, 0, f.copies));
  EXPECT_EQ(f.copies.size(), 3u);
  for (const UnitCopy& copy : f.copies) EXPECT_EQ(copy.src, -1);
  f.begin(b, text(16, 500));
  EXPECT_FALSE(f.manager.reserve(b, 16, 0, f.copies)) << "a page is free but no slot is";
  EXPECT_EQ(f.copies.size(), 3u);
  EXPECT_TRUE(b.table[0].unit.empty());
  EXPECT_EQ(f.manager.stats().group[0].n_free, 1);
}

TEST(StateManager, GivesUpItsPageForAnEqualOne) {
  Fixture f(plan_of({full(10)}));
  SequenceState a, b;
  f.begin(a, text(40));
  f.begin(b, text(40));
  f.prefill(a);
  f.prefill(b);
  EXPECT_EQ(a.table[0].unit[0], b.table[0].unit[0]);
  EXPECT_EQ(a.table[0].unit[1], b.table[0].unit[1]);
  EXPECT_NE(a.table[0].unit[2], b.table[0].unit[2]) << "the last page is not full";
  EXPECT_EQ(f.manager.stats().group[0].n_used, 4);
}

TEST(StateManager, EvictsTheOldestPrefixFirst) {
  Fixture f(plan_of({full(6)}));
  f.visit(text(33, 0));     // two pages stay
  f.visit(text(33, 1000));  // two more
  f.visit(text(33, 0));     // used again
  f.visit(text(64, 2000));  // needs four, has two
  EXPECT_EQ(f.manager.stats().n_evictions, 2);
  EXPECT_EQ(f.visit(text(33, 0)), 32);
}

TEST(StateManager, ForksShareUntilTheyWrite) {
  Fixture f(plan_of({full(10), slots(4)}));
  SequenceState a, b;
  f.begin(a, text(20));
  f.prefill(a);
  f.manager.fork(a, b);
  f.seqs.push_back(&b);
  EXPECT_EQ(a.table[0].unit, b.table[0].unit);
  EXPECT_EQ(a.table[1].src, b.table[1].src);
  int32_t shared = a.table[0].unit[1], state = a.table[1].src;

  a.tokens.push_back(1);
  b.tokens.push_back(2);
  ASSERT_TRUE(f.manager.reserve(b, 1, 0, f.copies));
  ASSERT_EQ(f.copies.back().src, shared);
  EXPECT_EQ(f.copies.back().dst, b.table[0].unit[1]);
  EXPECT_NE(b.table[0].unit[1], shared);
  EXPECT_EQ(b.table[1].src, state);
  EXPECT_NE(b.table[1].dst[0], state);
  f.manager.commit(b, 1);
  f.advance(a, 1);
  EXPECT_TRUE(f.copies.empty()) << "the last one to write has the page for itself";
  EXPECT_EQ(a.table[0].unit[1], shared);
  EXPECT_EQ(a.table[1].src, state);
}

TEST(StateManager, PagesBehindAWindowGoBackAtOnce) {
  Fixture f(plan_of({full(40), windowed(20, 40)}));
  SequenceState seq;
  f.begin(seq, text(10));
  f.prefill(seq);
  f.decode(seq, 190);
  // The last block ends at 192; a row there sees positions 173 and later.
  EXPECT_EQ(f.manager.stats().group[1].n_used, 3);
  EXPECT_EQ(f.manager.stats().group[1].n_cached, 1) << "of the answer nothing stays behind the window, of the prompt it may";
  EXPECT_EQ(seq.table[1].unit[9], -1);
  EXPECT_GT(seq.table[1].unit[10], 0);
  EXPECT_EQ(f.manager.stats().group[0].n_used, 13);
}

TEST(StateManager, ResumesWhereTheWindowIsWhole) {
  Fixture f(plan_of({full(40), windowed(20, 40)}));
  SequenceState seq;
  f.begin(seq, text(10));
  f.prefill(seq);
  f.decode(seq, 100);
  std::vector<int32_t> conversation = seq.tokens;
  f.manager.release(seq);
  conversation.resize(130, 5);
  EXPECT_EQ(f.visit(conversation), 96) << "the next turn";
  conversation.resize(50);
  EXPECT_EQ(f.visit(conversation), 16) << "pages of positions 16 to 63 have left the window";
}

TEST(StateManager, RecurrentStateResumesFromTheEndOfThePrompt) {
  Fixture f(plan_of({slots(8)}));
  EXPECT_EQ(f.visit(text(40)), 0);
  EXPECT_EQ(f.visit(text(40)), 32);
  EXPECT_EQ(f.visit(text(48)), 32);
  EXPECT_EQ(f.visit(text(31)), 0) << "no snapshot inside the prompt";
}

TEST(StateManager, KeepsASnapshotWhereASecondRequestDiverges) {
  Fixture f(plan_of({full(40), slots(8)}));
  std::vector<int32_t> a = text(100), b = text(50), c = text(50);
  b.resize(100, 7);
  c.resize(100, 8);
  EXPECT_EQ(f.visit(a), 0);
  EXPECT_EQ(f.visit(b), 0) << "the pages match up to 48, but there is no snapshot";
  EXPECT_EQ(f.visit(c), 48);
}

TEST(StateManager, TheNextTurnOfAConversationHits) {
  Fixture f(plan_of({full(40), slots(8)}));
  SequenceState seq;
  f.begin(seq, text(20));
  f.prefill(seq);
  f.decode(seq, 60);
  EXPECT_EQ(f.manager.stats().group[1].n_used + f.manager.stats().group[1].n_cached, 2 + 0)
      << "state shared with the snapshot at 80, and the prompt's";
  f.decode(seq, 5);
  EXPECT_EQ(f.manager.stats().group[1].n_used, 1);
  EXPECT_EQ(f.manager.stats().group[1].n_cached, 2) << "one at the prompt's end, one rolling";
  std::vector<int32_t> conversation = seq.tokens;
  f.manager.release(seq);
  conversation.resize(120, 5);
  EXPECT_EQ(f.visit(conversation), 80);
}

TEST(StateManager, ARollingSnapshotStaysOnceSomeoneResumedFromIt) {
  Fixture f(plan_of({full(60), slots(12)}));
  SequenceState seq;
  f.begin(seq, text(20));
  f.prefill(seq);
  f.decode(seq, 65);  // the snapshot at 80 is its last
  std::vector<int32_t> one = seq.tokens, other = seq.tokens;
  one.resize(80);
  other.resize(80);
  one.resize(100, 5);
  other.resize(100, 6);
  EXPECT_EQ(f.visit(one), 80);
  f.decode(seq, 20);  // now it is the one at 96
  EXPECT_EQ(f.visit(other), 80);
  f.manager.release(seq);
}

TEST(StateManager, RowsStoreTheirStateWhereItIsWanted) {
  Fixture f(plan_of({slots(8)}));
  SequenceState seq;
  f.begin(seq, text(40));
  ASSERT_TRUE(f.manager.reserve(seq, 40, 0, f.copies));
  auto& t = seq.table[0];
  EXPECT_EQ(t.src, 0);
  for (int row = 0; row < 40; row++) EXPECT_EQ(t.dst[row] > 0, row == 31 || row == 39) << row;
  int32_t snapshot = t.dst[31], working = t.dst[39];
  f.manager.commit(seq, 40);
  EXPECT_EQ(t.src, working);
  f.decode(seq, 7);
  EXPECT_EQ(t.src, working) << "decode writes in place";
  f.decode(seq, 1);  // 48 tokens: a block ends
  EXPECT_EQ(t.src, working) << "the tree shares it";
  seq.tokens.push_back(5);
  ASSERT_TRUE(f.manager.reserve(seq, 1, 0, f.copies));
  EXPECT_EQ(t.src, working);
  EXPECT_NE(t.dst[0], working) << "so the next row writes elsewhere";
  EXPECT_NE(t.dst[0], snapshot);
}

TEST(StateManager, OneSlotIsEnoughForOneSequence) {
  Fixture f(plan_of({slots(1)}));
  SequenceState seq;
  f.begin(seq, text(40));
  f.prefill(seq);
  f.decode(seq, 100);
  EXPECT_EQ(f.manager.stats().group[0].n_used, 1);
}

TEST(StateManager, DraftsWriteScratchSlotsAndAcceptanceRenames) {
  Fixture f(plan_of({full(8), slots(8)}));
  SequenceState seq;
  f.begin(seq, text(10));
  f.prefill(seq);
  auto& t = seq.table[1];
  int32_t before = t.src;
  ASSERT_TRUE(f.manager.reserve(seq, 4, 4, f.copies));
  std::vector<int32_t> dst = t.dst;
  seq.tokens.resize(12, 3);
  f.manager.commit(seq, std::vector<int>{0, 2});
  EXPECT_EQ(seq.committed, 12);
  EXPECT_EQ(t.src, dst[2]);
  EXPECT_EQ(f.manager.stats().group[1].n_used, 1);

  before = t.src;
  ASSERT_TRUE(f.manager.reserve(seq, 3, 3, f.copies));
  f.manager.commit(seq, 0);
  EXPECT_EQ(t.src, before) << "nothing accepted, nothing lost";
  ASSERT_TRUE(f.manager.reserve(seq, 3, 0, f.copies));
  EXPECT_THROW(f.manager.commit(seq, 2), Error) << "the state after row 1 was not kept";
  f.manager.release(seq);
  f.manager.check_invariants(f.seqs);
}

TEST(StateManager, PublishesOnlyTokensThatAreKnown) {
  Fixture f(plan_of({full(8), slots(8)}));
  SequenceState seq;
  f.begin(seq, text(15));
  f.prefill(seq);
  f.advance(seq, 1);  // its token is still being sampled
  EXPECT_EQ(seq.node->depth, 0);
  f.advance(seq, 1);
  seq.tokens.resize(17, 9);
  f.manager.release(seq);
  f.manager.check_invariants(f.seqs);
  std::vector<int32_t> next = seq.tokens;
  next.push_back(1);
  EXPECT_EQ(f.visit(next), 16);
}

TEST(StateManager, APlaceholderIsNoToken) {
  Fixture f(plan_of({full(8)}));
  SequenceState seq;
  f.begin(seq, text(15));
  f.prefill(seq);
  seq.tokens.push_back(-1);  // the next step is launched before this one is known
  f.advance(seq, 1);
  EXPECT_EQ(seq.node->depth, 0) << "a block was published under a token that nobody has";
  seq.tokens.back() = 9;
  seq.tokens.push_back(-1);
  f.advance(seq, 1);
  EXPECT_EQ(seq.node->depth, 1);
  f.manager.release(seq);
}

TEST(StateManager, MisuseIsASentence) {
  Fixture f(plan_of({full(8)}));
  SequenceState seq;
  EXPECT_THROW(f.manager.attach(seq), Error);
  EXPECT_THROW(f.manager.reserve(seq, 1, 0, f.copies), Error);
  f.begin(seq, text(5));
  EXPECT_THROW(f.manager.attach(seq), Error);
  EXPECT_THROW(f.manager.commit(seq, 1), Error);
  ASSERT_TRUE(f.manager.reserve(seq, 5, 0, f.copies));
  SequenceState child;
  EXPECT_THROW(f.manager.fork(seq, child), Error);
}

TEST(CarryOut, ZeroesAndCopiesInOrder) {
  std::vector<std::byte> bytes(4 * 8, std::byte{7}), swapped(2 * 8, std::byte{5});
  StateMemory memory{{{bytes.data(), 8, 4, 16}}}, host{{{swapped.data(), 8, 2, 16}}};
  std::vector<UnitCopy> copies{{0, 2, -1}, {0, 1, 2}, {0, 2, 3}};
  carry_out(copies, memory, host);
  EXPECT_EQ(bytes[0], std::byte{7});
  EXPECT_EQ(bytes[8], std::byte{0});
  EXPECT_EQ(bytes[16], std::byte{7});
  using enum UnitCopy::Where;
  carry_out(std::vector<UnitCopy>{{0, 0, 1, out}, {0, 1, -1}, {0, 3, 1, in}, {0, 1, 0, in}}, memory, host);
  EXPECT_EQ(swapped[0], std::byte{0});
  EXPECT_EQ(bytes[3 * 8], std::byte{5});
  EXPECT_EQ(bytes[8], std::byte{0});
}

// The plain form: neighbouring pages for the longest length at once, held to the end, and holes that nobody can use.
TEST(StateManager, ContiguousSequencesTakeNeighboursForTheirWholeLength) {
  MemoryPlan plan = plan_of({full(8), windowed(20, 8)});
  StateManager manager(plan, {true, 3 * page});
  std::vector<UnitCopy> copies;
  auto begin = [&](SequenceState& seq, int n) {
    seq.tokens = text(n);
    manager.attach(seq);
    return manager.reserve(seq, n, 0, copies);
  };
  SequenceState a, b, c, waiting;
  waiting.tokens = text(1);
  std::vector<const SequenceState*> one{&waiting}, three{&waiting, &waiting, &waiting};
  EXPECT_TRUE(manager.has_room(one, 100));
  EXPECT_FALSE(manager.has_room(three, 100));
  ASSERT_TRUE(begin(a, 5));
  ASSERT_TRUE(begin(b, 40));
  EXPECT_EQ(a.table[0].unit, (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(b.table[1].unit, (std::vector<int32_t>{4, 5, 6}));
  EXPECT_EQ(copies.size(), 2u * (1 + 3)) << "only pages that are entered are zeroed";
  EXPECT_FALSE(manager.has_room(one, 100));
  EXPECT_FALSE(begin(c, 1)) << "two pages are left in each group, but three are reserved for everyone";
  EXPECT_EQ(manager.stranded_units(), 4);
  manager.commit(b, 40);
  EXPECT_EQ(b.table[1].unit, (std::vector<int32_t>{4, 5, 6})) << "nothing goes back before the end";
  SequenceState child;
  EXPECT_THROW(manager.fork(b, child), Error);
  manager.release(a);
  EXPECT_TRUE(manager.reserve(c, 1, 0, copies));
  EXPECT_EQ(c.table[0].unit.front(), 1);
  manager.commit(c, 1);
  manager.check_invariants(std::vector<const SequenceState*>{&b, &c});
}

}  // namespace
}  // namespace mr
