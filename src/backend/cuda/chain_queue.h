// Steps that wait to be launched together, all of as many rows, and the programs on the device that captured graphs know.
#pragma once

#include <functional>
#include <vector>

#include "backend/cuda/chain/rows.h"

namespace mr::cuda {

// A scan, a choice of experts or their products, as kernels of their own.
void run_alone(const Launch&, const ChainStep&);

class ChainQueue {
 public:
  ChainQueue(const Launch&, int least);  // steps that are worth a chain
  ~ChainQueue();
  bool fits(const ChainStep& step) const { return steps_.empty() || rows_of(steps_.back()) == rows_of(step); }  // to what waits
  bool add(const ChainStep&);                          // false: it is not for a chain
  void plan(const DecodePlan& plan) { plan_ = plan; }  // of the attentions of several rows that wait
  bool takes(const ChainStep& last, int n) const;      // would n more of one row, with this as their last, be one?
  // Launches what waits: as one chain, or, where that is too short, each by `alone`.
  void flush(const std::function<void(const ChainStep&)>& alone);
  void drop() { steps_.clear(); }
  void forget();  // programs of graphs that are no more

 private:
  static int64_t rows_of(const ChainStep& s) {
    return s.attends() ? s.attend.q.rows : s.kind == ChainStep::Kind::product ? s.product.x.rows : 1;
  }
  template <class Step>
  const Step* on_device(const std::vector<Step>&);

  Launch at_;
  size_t least_;
  cudaStream_t side_ = nullptr;  // is never captured
  ChainMemory memory_;
  DecodePlan plan_;
  std::vector<ChainStep> steps_;
  struct Block {
    std::byte* data;
    size_t size, used;
  };
  std::vector<Block> captured_;
  Block passing_{};  // the program of a step that is not captured
};

}  // namespace mr::cuda
