// The state manager against a model of the machine. Every cell of every unit holds a hash of the whole history that should
// have written it; random sequences share prefixes, fork, draft, are preempted and released over tiny pools; before each step
// every sequence must find through its tables exactly what its own history demands.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <random>
#include <set>

#include "state/state_manager.h"

namespace mr {
namespace {

constexpr int page = 16;
constexpr int max_length = 160;
constexpr int max_rows = 40;
constexpr int max_drafts = 5;

using Kind = StateSpec::Kind;
using Hash = uint64_t;

Hash mix(Hash a, Hash b) {
  Hash h = (a ^ (b + 0x9e3779b97f4a7c15 + (a << 6) + (a >> 2))) * 0xff51afd7ed558ccd;
  return h ^ (h >> 32);
}

// What the machine holds: a cell for each token of a page, one for a slot.
struct Machine {
  using Units = std::vector<std::vector<std::vector<Hash>>>;  // [group][unit][cell]
  Units unit, host;
  explicit Machine(const MemoryPlan& plan) {
    const Hash stale = 0xdead;
    for (auto& g : plan.group) {
      unit.emplace_back(size_t(g.n_units), std::vector<Hash>(g.paged() ? page : 1, stale));
      host.emplace_back(size_t(g.n_host), std::vector<Hash>(g.paged() ? page : 1, stale));
    }
    for (size_t g = 0; g < plan.group.size(); g++)
      if (!plan.group[g].paged()) unit[g][0][0] = 0;
  }
  Hash& cell(int g, int32_t u, int i = 0) { return unit.at(g).at(u).at(i); }
  void carry_out(std::span<const UnitCopy> copies) {
    for (const UnitCopy& c : copies) {
      auto& dst = (c.where == UnitCopy::Where::out ? host : unit)[c.group].at(c.dst);
      if (c.src < 0)
        std::ranges::fill(dst, 0);
      else
        dst = (c.where == UnitCopy::Where::in ? host : unit)[c.group].at(c.src);
    }
  }
};

// A sequence and the truth about it. `truth` are its tokens with the one to compute next; seq.tokens may lag.
struct Client {
  SequenceState seq;
  std::vector<int32_t> truth;
  int stop_at = 0;
  bool lags = false;
  std::set<Hash> rejected;  // what its rejected rows left behind
  // of the step that is planned
  std::vector<int32_t> row_token;
  std::vector<int> accepted;
  int padding = 0;

  Hash salt() const { return std::hash<std::string>{}(seq.salt); }
  std::vector<Hash> states() const {  // [n]: after n tokens
    std::vector<Hash> all{0};
    for (int32_t token : truth) all.push_back(mix(mix(all.back(), salt()), Hash(token)));
    return all;
  }
};

class Simulation {
 public:
  Simulation(uint64_t seed, const MemoryPlan& plan, bool drafts, bool prefix_cache)
      : rng_(seed), plan_(plan), machine_(plan), manager_(plan, {prefix_cache}), drafts_(drafts), prefix_cache_(prefix_cache) {
    for (int i = 0; i < 3; i++) bank_.push_back(random_tokens(max_length / 2));
  }

  void run(int n_steps) {
    for (int i = 0; i < n_steps && !testing::Test::HasFatalFailure(); i++) {
      if (clients_.size() < 6 && dice(3) == 0) admit();
      if (!clients_.empty() && dice(12) == 0) fork(pick());
      if (!clients_.empty() && dice(15) == 0) {
        std::vector<UnitCopy> copies;
        preempt(pick(), copies);
        machine_.carry_out(copies);
      }
      if (!clients_.empty() && dice(20) == 0) finish(dice(int(clients_.size())));
      step();
    }
    while (!clients_.empty()) finish(0);
    StateStats stats = manager_.stats();
    for (auto& g : stats.group) {
      ASSERT_EQ(g.n_used, 0);
      ASSERT_EQ(g.n_cached + g.n_free, g.n_units);
    }
  }
  StateStats stats() const { return manager_.stats(); }

 private:
  int dice(int n) { return int(rng_() % uint64_t(n)); }
  Client& pick() { return *clients_[dice(int(clients_.size()))]; }
  std::vector<int32_t> random_tokens(int n) {
    std::vector<int32_t> tokens;
    while (int(tokens.size()) < n) tokens.push_back(dice(3));
    return tokens;
  }
  void verify_invariants() {
    std::vector<const SequenceState*> seqs;
    for (auto& c : clients_) seqs.push_back(&c->seq);
    ASSERT_NO_THROW(manager_.check_invariants(seqs)) << [&] {
      try {
        manager_.check_invariants(seqs);
      } catch (const Error& e) {
        return std::string(e.what());
      }
      return std::string();
    }();
  }

  // A prompt: the beginning of a text that others share, or a whole earlier conversation, and a few tokens of its own.
  void admit() {
    auto client = std::make_unique<Client>();
    client->truth = dice(2) ? bank_[dice(3)] : bank_.back();
    client->truth.resize(size_t(dice(int(client->truth.size()) + 1)));
    for (int32_t t : random_tokens(1 + (dice(2) ? 0 : dice(20)))) client->truth.push_back(t);
    client->truth.resize(std::min(client->truth.size(), size_t(max_length - 1)));
    client->stop_at = int(client->truth.size()) + 1 + dice(max_length - int(client->truth.size()));
    client->lags = dice(2);
    client->seq.id = next_id_++;
    client->seq.salt = dice(4) ? "" : "tenant";
    client->seq.publish = dice(8) != 0;
    client->seq.reuse = dice(8) != 0;
    client->seq.tokens = client->truth;
    clients_.push_back(std::move(client));
    attach(*clients_.back());
  }
  void attach(Client& c) {
    int n = manager_.attach(c.seq);
    ASSERT_EQ(n, c.seq.committed);
    ASSERT_EQ(n % page, 0);
    ASSERT_LT(n, int(c.seq.tokens.size()));
    verify_invariants();
  }
  void preempt(Client& c, std::vector<UnitCopy>& copies) {
    c.seq.tokens = c.truth;  // a preempted sequence waits for its last token before it begins again
    c.row_token.clear();
    const bool swapped = c.seq.swapped() || (c.seq.attached() && dice(2) && manager_.swap_out(c.seq, copies));
    if (!swapped) {
      manager_.release(c.seq);
      c.rejected.clear();
    }
    verify_invariants();
  }
  void finish(int i) {
    manager_.release(clients_[i]->seq);
    if (int(clients_[i]->truth.size()) < max_length - 10) {
      bank_.push_back(clients_[i]->truth);
      if (bank_.size() > 8) bank_.erase(bank_.begin() + 3);
    }
    clients_.erase(clients_.begin() + i);
    verify_invariants();
  }
  void fork(Client& parent) {
    if (parent.seq.table.empty()) return;
    auto child = std::make_unique<Client>();
    child->seq.id = next_id_++;
    manager_.fork(parent.seq, child->seq);
    child->truth = parent.truth;
    child->rejected = parent.rejected;
    child->stop_at = parent.stop_at;
    if (parent.seq.committed + 1 == int(parent.truth.size()) && parent.seq.tokens.size() == parent.truth.size())
      child->truth.back() = child->seq.tokens.back() = dice(3);  // another sample
    clients_.push_back(std::move(child));
    verify_invariants();
  }

  void step() {
    std::vector<UnitCopy> copies;
    std::vector<Client*> waiting;
    for (auto& c : clients_)
      if (dice(5)) waiting.push_back(c.get());
    std::ranges::shuffle(waiting, rng_);
    for (Client* c : waiting) schedule(*c, copies);
    machine_.carry_out(copies);
    for (auto& c : clients_) {
      if (c->row_token.empty()) continue;
      verify_context(*c);
      verify_alone(*c);
    }
    for (auto& c : clients_)
      if (!c->row_token.empty()) write(*c);
    for (auto& c : clients_)
      if (!c->row_token.empty()) commit(*c);
    for (int i = int(clients_.size()) - 1; i >= 0; i--)
      if (int(clients_[i]->truth.size()) >= clients_[i]->stop_at) finish(i);
  }

  void schedule(Client& c, std::vector<UnitCopy>& copies) {
    if (c.seq.swapped() && !manager_.swap_in(c.seq, copies)) {
      manager_.release(c.seq);
      c.rejected.clear();
    }
    if (!c.seq.attached()) attach(c);
    int rest = int(c.truth.size()) - c.seq.committed;  // tokens known and not yet computed
    int scratch = 0;
    c.accepted.clear();
    if (rest > 1) {
      c.row_token.assign(c.truth.begin() + c.seq.committed, c.truth.begin() + c.seq.committed + 1 + dice(std::min(rest, max_rows)));
      c.accepted.resize(c.row_token.size());
      std::iota(c.accepted.begin(), c.accepted.end(), 0);
    } else {
      c.row_token = {c.truth.back()};
      if (drafts_ && dice(2)) {
        for (int32_t t : random_tokens(dice(max_drafts))) c.row_token.push_back(t);
        scratch = int(c.row_token.size());
      }
      // A chain's beginning, a path through a tree, or nothing at all.
      bool tree = dice(2), nothing = scratch > 0 && dice(6) == 0;
      int n = 1 + dice(int(c.row_token.size()));
      for (int row = 0; row < int(c.row_token.size()) && !nothing; row++)
        if (tree ? row == 0 || dice(2) : row < n) c.accepted.push_back(row);
    }
    c.padding = scratch == 0 && dice(4) == 0 ? dice(max_drafts) : 0;
    while (!reserve(c, scratch, copies)) {
      std::vector<Client*> victims;
      for (auto& v : clients_)
        if (v.get() != &c && !v->seq.table.empty()) victims.push_back(v.get());
      ASSERT_FALSE(victims.empty()) << "a sequence alone finds no memory";
      preempt(*victims[dice(int(victims.size()))], copies);
    }
  }
  bool reserve(Client& c, int scratch, std::vector<UnitCopy>& copies) {
    auto units = [&] {
      std::vector<std::vector<int32_t>> all;
      for (auto& t : c.seq.table) {
        all.push_back(t.unit);
        all.push_back({t.src});
      }
      return all;
    };
    auto before = units();
    size_t n_copies = copies.size();
    bool ok = manager_.reserve(c.seq, int(c.row_token.size()), scratch, copies, c.padding);
    EXPECT_TRUE(ok || (units() == before && copies.size() == n_copies && c.seq.planned == 0)) << "a failed reserve changed something";
    verify_invariants();
    return ok;
  }

  int window_begin(int g, int position) const {
    int window = plan_.group[g].window;
    return window ? std::max(0, position - window + 1) : 0;
  }
  Hash key(int g, int position, Hash state) const { return mix(mix(state, Hash(position)), Hash(g)); }

  void verify_context(Client& c) {
    const int committed = c.seq.committed, n_rows = int(c.row_token.size());
    const std::vector<Hash> states = c.states();
    for (int g = 0; g < int(plan_.group.size()); g++) {
      auto& t = c.seq.table[g];
      if (!plan_.group[g].paged()) {
        ASSERT_EQ(machine_.cell(g, t.src), states[committed]) << "slot " << t.src << " after " << committed << " tokens";
        ASSERT_EQ(int(t.dst.size()), n_rows + c.padding);
        for (int pad = 0; pad < c.padding; pad++) ASSERT_EQ(t.dst[n_rows + pad], -1);
        for (int32_t dst : t.dst) ASSERT_NE(dst, 0);
        continue;
      }
      ASSERT_GE(int(t.unit.size()) * page, committed + n_rows + c.padding);
      for (int i = window_begin(g, committed); i < int(t.unit.size()) * page; i++) {
        int32_t u = t.unit[i / page];
        ASSERT_GT(u, 0);
        Hash found = machine_.cell(g, u, i % page);
        if (i < committed)
          ASSERT_EQ(found, key(g, i, states[i + 1])) << "group " << g << " position " << i;
        else
          ASSERT_TRUE(found == 0 || c.rejected.contains(found)) << "group " << g << " position " << i << " is neither zero nor ours";
      }
      int resume_at = prefix_cache_ && c.seq.publish ? committed / page * page : committed;
      int kept = int(t.unit.size()) - int(std::ranges::count(t.unit, -1));
      ASSERT_EQ(kept, int(t.unit.size()) - window_begin(g, resume_at) / page) << "a page behind the window is kept";
    }
  }

  // What this sequence writes in this step, no other sequence may read or write.
  void verify_alone(const Client& c) {
    for (size_t g = 0; g < plan_.group.size(); g++) {
      auto& t = c.seq.table[g];
      std::set<int32_t> written;
      for (int32_t u : t.dst) ASSERT_TRUE(u < 0 || written.insert(u).second) << "two rows store in slot " << u;
      for (size_t row = 0; row + 1 < c.row_token.size() && row < t.dst.size(); row++)
        ASSERT_NE(t.dst[row], t.src) << "overwritten before the last row";
      for (int p = c.seq.committed / page; p < int(t.unit.size()); p++) written.insert(t.unit[p]);
      for (auto& other : clients_) {
        if (other.get() == &c || other->row_token.empty()) continue;
        auto& o = other->seq.table[g];
        ASSERT_FALSE(written.contains(o.src)) << "slot " << o.src << " is read by another sequence";
        for (int32_t u : o.unit) ASSERT_FALSE(written.contains(u)) << "page " << u << " is read by another sequence";
        for (int32_t u : o.dst) ASSERT_FALSE(u >= 0 && written.contains(u)) << "unit " << u << " is written twice";
      }
    }
  }

  // Rows of the accepted path carry on the history; the others leave rubbish. Pages are then compacted to the path.
  void write(Client& c) {
    const int committed = c.seq.committed;
    for (int g = 0; g < int(plan_.group.size()); g++) {
      auto& t = c.seq.table[g];
      const bool paged = plan_.group[g].paged();
      auto cell = [&](int position) -> Hash& { return machine_.cell(g, t.unit[position / page], position % page); };
      Hash state = paged ? c.states()[committed] : machine_.cell(g, t.src);
      size_t next = 0;
      std::vector<std::pair<int, Hash>> path;
      for (int row = 0; row < int(c.row_token.size()); row++) {
        bool on_path = next < c.accepted.size() && c.accepted[next] == row;
        Hash rubbish = mix(rng_(), 1);
        if (on_path) state = mix(mix(state, c.salt()), Hash(c.row_token[row]));
        if (on_path) path.push_back({committed + int(next++), state});
        if (paged)
          c.rejected.insert(cell(committed + row) = rubbish);
        else if (t.dst[row] >= 0)
          machine_.cell(g, t.dst[row]) = on_path ? state : rubbish;
      }
      if (!paged) continue;
      for (auto [position, h] : path) cell(position) = key(g, position, h);
      for (int pad = 0; pad < c.padding; pad++) c.rejected.insert(cell(committed + int(c.row_token.size()) + pad) = mix(rng_(), 1));
    }
  }

  void commit(Client& c) {
    const int n = int(c.accepted.size());
    const bool last_known = c.seq.committed + 1 == int(c.truth.size());
    if (c.lags) c.seq.tokens = c.truth;  // what was sampled a step ago is known by now
    if (last_known)
      for (int i = 1; i < n; i++) c.truth.push_back(c.row_token[c.accepted[i]]);
    if (!c.lags) c.seq.tokens = c.truth;
    manager_.commit(c.seq, c.accepted);
    verify_invariants();
    if (c.seq.committed == int(c.truth.size())) c.truth.push_back(int32_t(c.states().back() % 3));  // the model's answer
    if (!c.lags) c.seq.tokens = c.truth;
    c.row_token.clear();
  }

  std::mt19937_64 rng_;
  MemoryPlan plan_;
  Machine machine_;
  StateManager manager_;
  bool drafts_, prefix_cache_;
  std::vector<std::unique_ptr<Client>> clients_;
  std::vector<std::vector<int32_t>> bank_;  // texts that prompts begin with
  uint64_t next_id_ = 1;
};

struct Layout {
  std::string name;
  std::vector<StateSpec> specs;
};

// Units for one sequence alone, and spare / 4 times as many again; `host` times as many to swap to.
MemoryPlan tiny_plan(const Layout& layout, bool drafts, int spare, int host) {
  MemoryPlan plan{page, {}, 0, 8};
  for (const StateSpec& spec : layout.specs) {
    int tokens = max_length + max_drafts;
    if (spec.window) tokens = std::min(tokens, spec.window + max_rows + 2 * page);
    int alone = spec.kind == Kind::slot ? (drafts ? 1 + max_drafts : 1) : (tokens + page - 1) / page;
    plan.group.push_back({spec.kind, spec.window, 0, 1 + alone + alone * spare / 4, host * (1 + alone)});
  }
  return plan;
}

class RandomState : public testing::TestWithParam<Layout> {};

TEST_P(RandomState, EverySequenceReadsItsOwnHistory) {
  int64_t hits = 0, evictions = 0, swaps = 0;
  for (uint64_t seed = 0; seed < 60 && !HasFatalFailure(); seed++) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    bool drafts = seed % 2, prefix_cache = seed % 10 != 9;
    Simulation simulation(seed, tiny_plan(GetParam(), drafts, int(seed % 13), int(seed % 3)), drafts, prefix_cache);
    simulation.run(120);
    StateStats stats = simulation.stats();
    ASSERT_TRUE(prefix_cache || (stats.n_lookups == 0 && stats.n_hits == 0));
    hits += stats.hit_tokens;
    evictions += stats.n_evictions;
    swaps += stats.n_swapped_in;
  }
  EXPECT_GT(hits, 1000);
  EXPECT_GT(evictions, 100);
  EXPECT_GT(swaps, 100);
}

INSTANTIATE_TEST_SUITE_P(Layouts, RandomState,
                         testing::Values(Layout{"full", {{Kind::paged, 64}}}, Layout{"window", {{Kind::paged, 64, 24}}},
                                         Layout{"slot", {{Kind::slot, 64}}},
                                         Layout{"full_window", {{Kind::paged, 64}, {Kind::paged, 64, 33}}},
                                         Layout{"two_windows", {{Kind::paged, 64, 7}, {Kind::paged, 64, 48}}},
                                         Layout{"full_slot", {{Kind::paged, 64}, {Kind::slot, 64}}},
                                         Layout{"window_slot", {{Kind::paged, 64, 16}, {Kind::slot, 64}}},
                                         Layout{"all", {{Kind::slot, 64}, {Kind::paged, 64, 1}, {Kind::paged, 64}, {Kind::paged, 64, 40}}}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace mr
