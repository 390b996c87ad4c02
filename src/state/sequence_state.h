// The state of one sequence: its tokens, how many of them are committed, and a block table for each group. Only the
// StateManager writes the tables; the runner copies them into a batch.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "state/prefix_tree.h"

namespace mr {

struct SequenceState {
  // Each unit listed here, except 0 and -1, holds one reference.
  struct Table {
    // Paged groups: unit[p] holds tokens [p * page_tokens, ...); -1: outside the window, released.
    std::vector<int32_t> unit;
    // Slot groups: the next step starts from src (the state after `committed` tokens; 0: the zero slot), and planned row r
    // stores its state in dst[r] (-1: not stored). dst of the last row may be src.
    int32_t src = 0;
    std::vector<int32_t> dst;
    struct Snapshot {
      int at;  // tokens in the state: a multiple of page_tokens
      int32_t unit;
    };
    std::vector<Snapshot> snapshot;  // to be published with their blocks
  };

  SequenceState() = default;
  SequenceState(SequenceState&&) = default;
  SequenceState& operator=(SequenceState&&) = default;

  uint64_t id = 0;
  std::string salt;             // prefixes are shared only between sequences of equal salt
  std::vector<int32_t> tokens;  // may be shorter than `committed`, or end in negative placeholders, while a step is in flight
  int n_prompt = 0;             // set by the first attach
  int committed = 0;            // tokens in the state
  int planned = 0;              // rows of the last reserve, until the commit
  bool reuse = true;            // attach may resume from a shared prefix
  bool publish = true;          // full blocks may be shared with others
  std::vector<Table> table;     // per group; empty: no state
  std::vector<Table> host;      // per group, while swapped out: units of swap space with its `committed` tokens

  bool attached() const { return !table.empty(); }
  bool swapped() const { return !host.empty(); }

  // Private to the manager.
  PrefixTree::Node* node = nullptr;     // the last published block; pinned
  PrefixTree::Node* rolling = nullptr;  // has the rolling snapshot of the last block end; `node` or an ancestor
  std::array<int, 2> keep_at{};         // where to keep a snapshot: the last block end of the prompt, and where it left the tree
};

}  // namespace mr
