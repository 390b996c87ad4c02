// How the memory for state is split before any of it is allocated: units of each group, and how many tokens and sequences
// they hold. What cannot fit is an error here, never an out-of-memory death later.
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
  int64_t max_tokens = 0;   // kept at once, all sequences together; 0: as many as the bytes hold
  int max_seqs = 16;        // running at once
  int max_rows = 512;       // of one sequence in a step: a window group holds them beside its window
  int scratch = 0;          // slots that the drafts of one sequence write
  int snapshots = -1;       // slots for the prefix tree; -1: two a sequence, but at most a quarter of the bytes
  bool contiguous = false;  // windows keep all tokens too
  int64_t host_bytes = 0;   // beside the state: units of preempted sequences are swapped there
};

struct MemoryPlan {
  static constexpr int64_t unbounded = std::numeric_limits<int64_t>::max();
  struct GroupPlan {
    StateSpec::Kind kind;
    int window;
    int64_t unit_bytes, n_units;    // n_units: with the reserved unit 0
    int64_t n_host = 0;             // units to swap to, with a reserved unit 0; 0: none
    std::vector<int64_t> layers{};  // as in Group
    int64_t bytes() const { return unit_bytes * n_units; }
    bool paged() const { return kind == StateSpec::Kind::paged; }
  };
  int page_tokens = 0;
  std::vector<GroupPlan> group;
  int64_t n_tokens = 0;  // kept at once; unbounded when no group keeps all tokens
  int n_seqs = 0;        // running at once

  int64_t bytes() const;
  int64_t host_bytes() const;
  std::string text() const;  // one line a group: "pages: 1024 of 32 tokens, 96.0 MiB"
};

std::string size_text(int64_t bytes);  // "96.0 MiB"

MemoryPlan plan_memory(const StateLayout&, const StateLimits&);

// Owns the units of every group, zeroed, in memory that `allocate` gives (empty: the host's), and the host memory they are swapped to.
class StateStore {
 public:
  explicit StateStore(const MemoryPlan&, const std::function<Buffer(size_t)>& allocate = {});
  const StateMemory& memory() const { return memory_; }
  const StateMemory& host() const { return host_; }  // where units are swapped to

 private:
  std::vector<Buffer> buffers_;
  StateMemory memory_, host_;
};

}  // namespace mr
