// Steps that were captured as graphs, by a key of whoever runs them.
#pragma once

#include <unordered_map>

#include "backend/cuda/device/device.h"
#include "core/thread_pool.h"

namespace mr::cuda {

class Graphs {
 public:
  struct Graph {
    cudaGraphExec_t exec = nullptr;
    Tensor result;  // of the step
  };
  ~Graphs() { forget(); }
  bool full() const { return graphs_.size() >= kMost; }
  const Graph* find(uint64_t key) const;
  Tensor capture(cudaStream_t, uint64_t key, FunctionRef<Tensor()> step);
  void forget();

 private:
  static constexpr size_t kMost = 256;
  std::unordered_map<uint64_t, Graph> graphs_;
};

}  // namespace mr::cuda
