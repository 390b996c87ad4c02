// A step's arrays on the device, and the plan of its attention. All of it is written into one pinned buffer and copied in one transfer
// to a fixed address; block tables come last, each padded to a power of two, so that in steps of one shape every array is
// where a captured graph expects it.
#pragma once

#include <vector>

#include "backend/backend.h"
#include "backend/cuda/attention/attention.h"

namespace mr::cuda {

// Number of state groups that a step has tables for.
struct StateGroups {
  int64_t paged = 0, slots = 0;
};

inline constexpr int kUsualEdits = 64;                      // reserved logit edits per row; more make the memory grow
inline constexpr int64_t kUsualContext = int64_t(1) << 17;  // reserved tokens per sequence, likewise

class StepMemory {
 public:
  struct Plan {
    const DecodeItem* item = nullptr;     // on the device
    int n_items = 0, grid = 0;            // grid: most items of steps with this layout
    int slots = 0;                        // partial results, of items and of shared prefixes
    const DecodeItem* chained = nullptr;  // the same sequences split for the blocks of a chain; only few sequences of one row
    int n_chained = 0;
    const SharedTile* shared = nullptr;
    const SharedRow* shared_row = nullptr;
    const int32_t* n_shared = nullptr;
    int shared_room = 0;
    const PrefillTile* tile = nullptr;
    int n_tiles = 0, n_single = 0;  // the first n_single tiles are sequences of a single row
  };

  struct Rules {
    bool deterministic = false;  // items are whole spans; sequences of a single row have prefill tiles, too, for heads without spans
    int share = 0;               // sequences per tile of shared keys; 0: prefixes are not shared
    int workers = 1;             // concurrent blocks of a decode per K/V head
    int chained = 1;             // blocks of a chain per K/V head
    int chain_rows = 1;          // most sequences in a chain
  };
  StepMemory(cudaStream_t, const Rules&);
  ~StepMemory();
  Batch upload(const Batch& host, const StateMemory&);
  int64_t most_slots(int64_t n_seqs) const;                         // of any plan for this many sequences
  int64_t most_bytes(const StepLimits&, const StateGroups&) const;  // of a step's arrays with at most the usual edits and context
  void reserve(int64_t bytes);
  int64_t bytes() const { return int64_t(size_); }
  const Plan& plan() const { return plan_; }
  uint64_t layout() const { return layout_; }   // a hash: equal if every array has the same address
  int64_t n_edits() const { return n_edits_; }  // of all output rows
  int moves() const { return moves_; }          // times the memory grew, and so moved

 private:
  void make_plan(const Batch&, const StateMemory&);
  void share_prefixes(const Batch&, const StateMemory&);
  int64_t cut_into(int most, int workers);
  void cut(const Batch&, int workers);
  int64_t n_items() const;
  int64_t n_spans() const;
  static int64_t most_items(int64_t n_seqs, int workers);
  int64_t most_grid(int64_t n_seqs) const;
  int32_t make_items(const Batch&, const StateMemory&, int workers, std::vector<DecodeItem>&);
  template <class T>
  const T* put(const T* from, int64_t n, int64_t room);
  void write(const Batch& host, Batch& out, const StateMemory&);

  cudaStream_t stream_;
  Rules rules_;
  std::byte *host_[2] = {}, *device_ = nullptr;
  cudaEvent_t copied_[2];
  int turn_ = 0, moves_ = 0;
  size_t size_ = 0, used_ = 0;
  uint64_t layout_ = 0;
  int64_t n_edits_ = 0;
  std::vector<DecodeItem> items_, chained_;
  std::vector<PrefillTile> tiles_;
  std::vector<SharedTile> shared_;
  std::vector<SharedRow> shared_rows_;
  struct Prefix {
    int tokens = 0, parts = 0;
    int32_t slot = 0;  // of the sequence's first partial result
  };
  std::vector<Prefix> prefix_;  // [n_seqs] the part that attend_shared() computes
  int32_t n_shared_ = 0;
  struct Own {
    int seq, length;                                                        // tokens after its shared prefix
    int piece = 0, n = 0;                                                   // n items of `piece` tokens, the last may be shorter
    int spans() const { return n > 1 ? (length + kSpan - 1) / kSpan : 0; }  // that leave a partial result
  };
  std::vector<Own> own_;  // the sequences of one row
  std::vector<GroupTable> tables_;
  Plan plan_;
};

}  // namespace mr::cuda
