// Chain programs on the device: lists of steps, all of the same number of rows, that one kernel runs in order. For chains launched now
// and for those recorded in captured graphs.
#pragma once

#include <vector>

#include "backend/cuda/chain/rows.h"

namespace mr::cuda {

// Runs a scan, a routing or expert products as separate kernels.
void run_alone(const Launch&, const ChainStep&);

int64_t rows_of(const ChainStep&);

class ChainPrograms {
 public:
  ChainPrograms(const Launch&, int least);  // least: fewest steps worth a chain
  ~ChainPrograms();
  bool can_take(const ChainStep&) const;
  bool pays(size_t n_steps) const { return n_steps >= least_; }
  void launch(const std::vector<ChainStep>&, const DecodePlan&);  // plan: of attentions of several rows
  void forget();                                                  // frees the programs of graphs, which must be destroyed
  int64_t needs(int64_t n_steps) const;                           // upper bound in bytes for this many steps, without graphs
  int64_t bytes() const;                                          // allocated so far, without graphs

 private:
  template <class Step>
  const Step* on_device(const std::vector<Step>&);

  const Launch& at_;
  size_t least_;
  cudaStream_t side_ = nullptr;  // never captured
  ChainMemory memory_;
  struct Block {
    std::byte* data;
    size_t size, used;
  };
  std::vector<Block> captured_;
  Block passing_{};  // the program of a chain that is not captured
};

}  // namespace mr::cuda
