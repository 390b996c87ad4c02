// What one sequence keeps: its tokens, how many of them its state has absorbed, and a table of units for each group. The
// StateManager alone writes the tables; the runner copies them into a batch.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "state/prefix_tree.h"

namespace mr {

struct SequenceState {
  // Each unit named here, but 0 and -1, is one reference.
  struct Table {
    // Paged groups: unit[p] holds tokens [p * page_tokens, ...); -1 once the window has left it behind.
    std::vector<int32_t> unit;
    // Slot groups: the next step starts from src (the state after `committed` tokens; 0: the zero slot), and planned row r
    // stores its state in dst[r] (-1: nowhere). dst of the last row may be src.
    int32_t src = 0;
    std::vector<int32_t> dst;
    struct Snapshot {
      int at;  // tokens it has absorbed: a multiple of page_tokens
      int32_t unit;
    };
    std::vector<Snapshot> snapshot;  // stored, waiting for its block to be published
  };

  SequenceState() = default;
  SequenceState(SequenceState&&) = default;
  SequenceState& operator=(SequenceState&&) = default;

  uint64_t id = 0;
  std::string salt;             // prefixes are shared only between sequences of equal salt
  std::vector<int32_t> tokens;  // may run behind `committed`, or end in negative ones, while a step's tokens are not yet known
  int n_prompt = 0;             // set by the first attach
  int committed = 0;            // tokens that the state has absorbed
  int planned = 0;              // rows of the last reserve, until the commit
  bool reuse = true;            // attach may resume from a shared prefix
  bool publish = true;          // full blocks may be shared with others
  std::vector<Table> table;     // per group; empty: it has no state
  std::vector<Table> host;      // per group, while it is swapped out: units of host memory that hold its `committed` tokens

  bool attached() const { return !table.empty(); }
  bool swapped() const { return !host.empty(); }

  // The manager's own notes.
  PrefixTree::Node* node = nullptr;     // the last block that is published; pinned
  PrefixTree::Node* rolling = nullptr;  // holds our snapshot of the last block end, dropped when we move on; node or above it
  std::array<int, 2> keep_at{};         // where a snapshot should stay: the last block end of the prompt, and where it left the tree
};

}  // namespace mr
