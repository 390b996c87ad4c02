// Steps captured as CUDA graphs, by the caller's key. The driver does not tell a graph's memory in advance, so the memory
// plan reserves room for them, and each capture is measured.
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
  static constexpr int64_t kRoom = int64_t(1) << 30;  // bytes
  bool full() const { return graphs_.size() >= kMost || taken_ >= kRoom; }
  int64_t bytes() const { return taken_; }  // device memory, including that of chains made during capture
  const Graph* find(uint64_t key) const;
  Tensor capture(cudaStream_t, uint64_t key, FunctionRef<Tensor()> step);
  void forget();

 private:
  static constexpr size_t kMost = 256;
  std::unordered_map<uint64_t, Graph> graphs_;
  int64_t taken_ = 0;
};

}  // namespace mr::cuda
