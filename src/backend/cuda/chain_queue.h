// Steps of one row that wait to be launched together, and the programs on the device that captured graphs know.
#pragma once

#include <functional>
#include <vector>

#include "backend/cuda/chain.h"

namespace mr::cuda {

class ChainQueue {
 public:
  ChainQueue(const Launch&, int least);  // steps that are worth a chain
  ~ChainQueue();
  bool add(const ChainStep&);  // false: it is not for a chain
  // Launches what waits: as one chain, or, where that is too short, each by `alone`.
  void flush(const std::function<void(const ChainStep&)>& alone);
  void drop() { steps_.clear(); }
  void forget();  // programs of graphs that are no more

 private:
  const ChainStep* on_device(const std::vector<ChainStep>&);

  Launch at_;
  size_t least_;
  cudaStream_t side_ = nullptr;  // is never captured
  ChainMemory memory_;
  std::vector<ChainStep> steps_;
  struct Block {
    std::byte* data;
    size_t size, used;
  };
  std::vector<Block> captured_;
  Block passing_{};  // the program of a step that is not captured
};

}  // namespace mr::cuda
