// A step's arrays on the device, and the plan of its attention. All of it is written into one pinned buffer and copied at once to
// a fixed address; tables of pages come last, each with room for a power of two, so that steps of one shape find every array
// where a captured graph expects it.
#pragma once

#include <vector>

#include "backend/cuda/kernels.h"

namespace mr::cuda {

class StepMemory {
 public:
  struct Plan {
    const DecodeItem* item = nullptr;  // on the device
    int n_items = 0, grid = 0;         // grid: items that steps of this layout have at most
    const PrefillTile* tile = nullptr;
    int n_tiles = 0;
  };

  explicit StepMemory(cudaStream_t);
  ~StepMemory();
  // n_workers: blocks that run at a time, for every K/V head. 0: no decode items; every row is computed in one way, whatever is
  // beside it.
  Batch upload(const Batch& host, const StateMemory&, int n_workers);
  const Plan& plan() const { return plan_; }
  uint64_t layout() const { return layout_; }   // equal: every array lies where it lay
  int64_t n_edits() const { return n_edits_; }  // of all output rows
  int moves() const { return moves_; }          // how often the memory had to grow, and so moved

 private:
  void make_plan(const Batch&, const StateMemory&, int n_workers);
  int item_length(const Batch&, int n_workers) const;
  template <class T>
  const T* put(const T* from, int64_t n, int64_t room);
  void write(const Batch& host, Batch& out, const StateMemory&);

  cudaStream_t stream_;
  std::byte *host_[2] = {}, *device_ = nullptr;
  cudaEvent_t copied_[2];
  int turn_ = 0, moves_ = 0;
  size_t size_ = 0, used_ = 0;
  uint64_t layout_ = 0;
  int64_t n_edits_ = 0;
  std::vector<DecodeItem> items_;
  std::vector<PrefillTile> tiles_;
  std::vector<GroupTable> tables_;
  Plan plan_;
};

}  // namespace mr::cuda
