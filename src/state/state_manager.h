// Manages the state of every sequence: allocates units, shares prefixes through the tree, copies on write. Host bookkeeping
// only: it does not touch the state itself.
//
//   seq.tokens = prompt; attach(seq);
//   loop { reserve(seq, rows, 0, copies); the runner executes the copies, in order, and runs rows [committed, + rows) with
//          seq.table; commit(seq, rows); append the new token to seq.tokens }
//   release(seq)
#pragma once

#include <span>
#include <vector>

#include "state/memory_plan.h"
#include "state/pool.h"
#include "state/prefix_tree.h"
#include "state/sequence_state.h"

namespace mr {

// Executes copies in host-accessible memory; `host` is the swap space.
void carry_out(std::span<const UnitCopy>, const StateMemory&, const StateMemory& host);

struct StateStats {
  struct Group {
    int n_units, n_used, n_cached, n_free;  // n_used: by sequences; n_cached: only by the prefix tree; they add up to n_units
  };
  std::vector<Group> group;
  int64_t n_lookups = 0, n_hits = 0;          // attaches, and those that resumed from a prefix
  int64_t lookup_tokens = 0, hit_tokens = 0;  // of those attaches
  int64_t n_evictions = 0;
  int64_t n_swapped_out = 0, n_swapped_in = 0;  // units
};

class StateManager {
 public:
  struct Options {
    bool prefix_cache = true;
    // Baseline without paging: every sequence gets contiguous pages for this many tokens when it starts, and nothing is shared.
    // 0: pages are allocated one by one.
    int contiguous_tokens = 0;
  };

  explicit StateManager(const MemoryPlan&, Options = {true, 0});
  StateManager(const StateManager&) = delete;

  int page_tokens() const { return page_tokens_; }
  std::span<const MemoryPlan::GroupPlan> groups() const { return groups_; }

  // Starts a sequence, or restarts it after a release, from the longest prefix of its tokens that every group can resume
  // from; at least one token is left to compute. Returns the number of tokens that need not be computed (= seq.committed).
  int attach(SequenceState&);

  // Whether there is memory now for all tokens of these sequences, computed max_rows at a time.
  bool has_room(std::span<const SequenceState* const>, int max_rows) const;

  // Allocates units for rows [committed, committed + rows), and for `padding` rows after them that are never committed. If there are only
  // pages, any number of rows may be committed; with slots, all of them, or so many that the last one committed is among the last
  // `scratch` rows, or none if scratch > 0. False: no memory, nothing changed. A second reserve replaces the plan of the first, but not its
  // copies.
  bool reserve(SequenceState&, int rows, int scratch, std::vector<UnitCopy>& copies, int padding = 0);

  // Accepts rows of the plan in the order of their positions (a chain: 0..n-1), which is the order in their pages. Full blocks are
  // published, or replaced by equal ones already published; pages that left their window are released.
  void commit(SequenceState&, std::span<const int> rows);
  void commit(SequenceState&, int n_rows);  // the first n_rows

  // `child` becomes a copy of `parent` after its last commit, and shares its units until one of them writes.
  void fork(const SequenceState& parent, SequenceState& child);

  // Releases all units. Published blocks stay in the tree until they are evicted: the sequence may attach again.
  void release(SequenceState&) noexcept;
  // Back to the initial state: frees every unit, whoever holds it, and clears the prefix tree.
  void reset() noexcept;

  // Moves its units to swap space, or back; while swapped out it holds nothing else. False: no room there, nothing changed.
  bool swap_out(SequenceState&, std::vector<UnitCopy>& copies);
  bool swap_in(SequenceState&, std::vector<UnitCopy>& copies);

  StateStats stats() const;
  int64_t stranded_units() const;  // free, but in holes too short for a contiguous sequence
  // Throws unless the reference counts are exactly those of the tree and of these sequences, which must be all that exist.
  void check_invariants(std::span<const SequenceState* const>) const;

 private:
  using Node = PrefixTree::Node;
  using Table = SequenceState::Table;

  UnitPool& pool(int group) { return pools_[group]; }
  int n_groups() const { return int(groups_.size()); }
  const MemoryPlan::GroupPlan& group(int g) const { return groups_[g]; }
  bool publishes(const SequenceState& seq) const { return prefix_cache_ && seq.publish; }
  bool may_write(const SequenceState&, int group) const;  // whether slot src may be updated in place
  int first_page(int group, int committed) const;         // visible to a row at position `committed`

  std::vector<Node*> resumable_path(const SequenceState&, Node* root, int& n_matched) const;
  void resume(SequenceState&, std::span<Node* const> path);

  int units_needed(const SequenceState&, int group, int rows, int scratch) const;  // rows: with padding
  int units_wanted(const SequenceState&, int group, int max_rows) const;           // beyond those it has, for all its tokens
  int run_pages() const { return (contiguous_tokens_ + page_tokens_ - 1) / page_tokens_; }
  int n_runs(int group) const;     // contiguous: number of sequences that fit in its free units
  bool take_runs(SequenceState&);  // contiguous: allocates all its pages
  int32_t take(int group);         // evicts if necessary; a unit must be available
  void plan_pages(SequenceState&, int group, int rows, std::vector<UnitCopy>&);
  void plan_slots(SequenceState&, int group, int rows, int scratch, int padding);
  void forget_snapshot(SequenceState&, int group);  // the one in src
  void drop_plan(SequenceState&);

  void accept_slots(SequenceState&, int group, std::span<const int> rows);
  void publish(SequenceState&);
  void publish_pages(SequenceState&, Node*);
  void publish_snapshots(SequenceState&);
  void leave_windows(SequenceState&);

  void release_host(const Table&, int group);
  void check_host_units(int group, std::span<const SequenceState* const>) const;

  int page_tokens_;
  bool prefix_cache_;
  int contiguous_tokens_;
  std::vector<MemoryPlan::GroupPlan> groups_;
  std::vector<UnitPool> pools_, host_pools_;  // per group
  PrefixTree tree_;
  StateStats counters_;  // group is empty here
};

}  // namespace mr
