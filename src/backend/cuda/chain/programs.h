// Steps that one kernel does one after the other, all of as many rows: their programs on the device, for those launched now and for
// those that captured graphs know.
#pragma once

#include <vector>

#include "backend/cuda/chain/rows.h"

namespace mr::cuda {

// A scan, a choice of experts or their products, as kernels of their own.
void run_alone(const Launch&, const ChainStep&);

int64_t rows_of(const ChainStep&);

class ChainPrograms {
 public:
  ChainPrograms(const Launch&, int least);  // steps that are worth a chain
  ~ChainPrograms();
  bool can_take(const ChainStep&) const;
  bool pays(size_t n_steps) const { return n_steps >= least_; }
  void launch(const std::vector<ChainStep>&, const DecodePlan&);  // plan: of attentions of several rows
  void forget();                                                  // programs of graphs that are no more
  int64_t needs(int64_t n_steps) const;                           // bytes for programs of so many steps, without those of graphs
  int64_t bytes() const;                                          // that were taken, without those of graphs

 private:
  template <class Step>
  const Step* on_device(const std::vector<Step>&);

  const Launch& at_;
  size_t least_;
  cudaStream_t side_ = nullptr;  // is never captured
  ChainMemory memory_;
  struct Block {
    std::byte* data;
    size_t size, used;
  };
  std::vector<Block> captured_;
  Block passing_{};  // the program of a step that is not captured
};

}  // namespace mr::cuda
