// Holds the state of every sequence: hands out units, shares prefixes through the tree, copies what is shared before it is
// written. Host bookkeeping only: no byte of state is touched here.
//
//   seq.tokens = prompt; attach(seq);
//   loop { reserve(seq, rows, 0, copies); the runner carries out the copies, in order, and runs rows [committed, + rows) through
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

// On memory that the host can reach; `host` is where units are swapped to.
void carry_out(std::span<const UnitCopy>, const StateMemory&, const StateMemory& host);

struct StateStats {
  struct Group {
    int n_units, n_used, n_cached, n_free;  // n_used: by sequences; n_cached: by the prefix tree alone; they add up to n_units
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
    // The plain form: every sequence gets neighbouring pages for this many tokens when it begins, and nothing is shared.
    // 0: pages come one by one.
    int contiguous_tokens = 0;
  };

  explicit StateManager(const MemoryPlan&, Options = {true, 0});
  StateManager(const StateManager&) = delete;

  int page_tokens() const { return page_tokens_; }
  std::span<const MemoryPlan::GroupPlan> groups() const { return groups_; }

  // Begins a sequence, or begins it again after a release, with the longest prefix of its tokens that every group can resume
  // from; at least one token is left to compute. Returns how many tokens need not be computed (= seq.committed).
  int attach(SequenceState&);

  // Whether these sequences would find memory for all their tokens now, computed max_rows at a time.
  bool has_room(std::span<const SequenceState* const>, int max_rows) const;

  // Makes room for rows [committed, committed + rows), and for `padding` rows behind them that are never committed. Any number of them may
  // be committed if only pages are kept; slots allow all of them, or as few as leave the last row committed among the last `scratch` rows,
  // or none if scratch > 0. False: no memory, nothing changed. A second reserve replaces the plan of the first, but not the copies it asked
  // for.
  bool reserve(SequenceState&, int rows, int scratch, std::vector<UnitCopy>& copies, int padding = 0);

  // Accepts rows of the plan in the order of their positions (a chain: 0..n-1), whose pages lie in that order. Full blocks are
  // published, or given up for equal ones already there; pages behind windows go back.
  void commit(SequenceState&, std::span<const int> rows);
  void commit(SequenceState&, int n_rows);  // the first n_rows

  // `child` becomes what `parent` is after its last commit, and shares its units until one of them writes.
  void fork(const SequenceState& parent, SequenceState& child);

  // Gives all units back. What is published stays in the tree until it is evicted: the sequence may attach again.
  void release(SequenceState&) noexcept;
  // The books as they were at the beginning: every unit is free, whoever held it, and no prefix is known.
  void reset() noexcept;

  // Moves its units to host memory, or back; between, it holds nothing else. False: no room there, nothing changed.
  bool swap_out(SequenceState&, std::vector<UnitCopy>& copies);
  bool swap_in(SequenceState&, std::vector<UnitCopy>& copies);

  StateStats stats() const;
  int64_t stranded_units() const;  // free, but in holes too short for a contiguous sequence
  // Throws unless the reference counts are exactly those of the tree and of these sequences, which must be all there are.
  void check_invariants(std::span<const SequenceState* const>) const;

 private:
  using Node = PrefixTree::Node;
  using Table = SequenceState::Table;

  UnitPool& pool(int group) { return pools_[group]; }
  int n_groups() const { return int(groups_.size()); }
  const MemoryPlan::GroupPlan& group(int g) const { return groups_[g]; }
  bool publishes(const SequenceState& seq) const { return prefix_cache_ && seq.publish; }
  bool may_write(const SequenceState&, int group) const;  // the slot src, in place
  int first_page(int group, int committed) const;         // that a row at position `committed` sees

  std::vector<Node*> resumable_path(const SequenceState&, Node* root, int& n_matched) const;
  void resume(SequenceState&, std::span<Node* const> path);

  int units_needed(const SequenceState&, int group, int rows, int scratch) const;  // rows: with padding
  int units_wanted(const SequenceState&, int group, int max_rows) const;           // more than it has, for all its tokens
  int run_pages() const { return (contiguous_tokens_ + page_tokens_ - 1) / page_tokens_; }
  int n_runs(int group) const;     // contiguous: sequences that its free units hold
  bool take_runs(SequenceState&);  // contiguous: all its pages
  int32_t take(int group);         // evicts if it must; a unit must be available
  void plan_pages(SequenceState&, int group, int rows, std::vector<UnitCopy>&);
  void plan_slots(SequenceState&, int group, int rows, int scratch, int padding);
  void forget_snapshot(SequenceState&, int group);  // the one that src is
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
