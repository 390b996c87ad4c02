#include "backend/cuda/graphs.h"

#include <algorithm>

namespace mr::cuda {

const Graphs::Graph* Graphs::find(uint64_t key) const {
  auto it = graphs_.find(key);
  return it == graphs_.end() ? nullptr : &it->second;
}

static int64_t free_bytes() {
  size_t free = 0, total = 0;
  must(cudaMemGetInfo(&free, &total));
  return int64_t(free);
}

Tensor Graphs::capture(cudaStream_t stream, uint64_t key, FunctionRef<Tensor()> step) {
  cudaGraph_t graph = nullptr;
  Graph made;
  const int64_t before = free_bytes();
  must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  try {
    made.result = step();
  } catch (...) {
    cudaStreamEndCapture(stream, &graph);
    cudaGraphDestroy(graph);
    throw;
  }
  must(cudaStreamEndCapture(stream, &graph));
  must(cudaGraphInstantiate(&made.exec, graph, 0));
  cudaGraphDestroy(graph);
  graphs_.emplace(key, made);
  must(cudaGraphUpload(made.exec, stream));
  taken_ += std::max<int64_t>(0, before - free_bytes());
  return made.result;
}

void Graphs::forget() {
  for (auto& [key, graph] : graphs_) cudaGraphExecDestroy(graph.exec);
  graphs_.clear();
  taken_ = 0;
}

}  // namespace mr::cuda
