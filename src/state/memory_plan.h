// Splits the memory for state before any of it is allocated: units of each group, and how many tokens and sequences
// they hold. What does not fit is an error here, not an out-of-memory failure later.
#pragma once

#include <functional>
#include <limits>
#include <string>

#include "core/tensor.h"
#include "state/state_spec.h"

namespace mr {

struct StateLimits {
  int page_tokens = 32;     // a multiple of 16
  int64_t bytes = 0;        // for all of the state; 0: no limit, then max_tokens decides
  int64_t max_tokens = 0;   // stored at once, over all sequences; 0: as many as the bytes hold
  int max_seqs = 16;        // running at once
  int max_rows = 512;       // of one sequence in a step: a window group holds them in addition to its window
  int scratch = 0;          // slots per sequence for the states of drafts
  int snapshots = -1;       // slots for the prefix tree; -1: two per sequence, but at most a quarter of the bytes
  bool contiguous = false;  // windows keep all tokens too
  int64_t host_bytes = 0;   // swap space for preempted sequences, in addition to the state
};

struct MemoryPlan {
  static constexpr int64_t unbounded = std::numeric_limits<int64_t>::max();
  struct GroupPlan {
    StateSpec::Kind kind;
    int window;
    int64_t unit_bytes, n_units;    // n_units: including the reserved unit 0
    int64_t n_host = 0;             // units of swap space, including a reserved unit 0; 0: none
    std::vector<int64_t> layers{};  // as in Group
    int64_t bytes() const { return unit_bytes * n_units; }
    bool paged() const { return kind == StateSpec::Kind::paged; }
  };
  int page_tokens = 0;
  std::vector<GroupPlan> group;
  int64_t n_tokens = 0;  // stored at once; unbounded if no group keeps all tokens
  int n_seqs = 0;        // running at once

  int64_t bytes() const;
  int64_t host_bytes() const;
  std::string text() const;  // one line per group: "pages: 1024 of 32 tokens, 96.0 MiB"
};

std::string size_text(int64_t bytes);  // "96.0 MiB"

MemoryPlan plan_memory(const StateLayout&, const StateLimits&);

// Owns the units of every group, zeroed, in memory from `allocate` (empty: host memory), and the swap space in host memory.
class StateStore {
 public:
  explicit StateStore(const MemoryPlan&, const std::function<Buffer(size_t)>& allocate = {});
  const StateMemory& memory() const { return memory_; }
  const StateMemory& host() const { return host_; }  // swap space

 private:
  std::vector<Buffer> buffers_;
  StateMemory memory_, host_;
};

}  // namespace mr
