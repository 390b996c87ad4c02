#include "backend/cuda/graphs.h"

namespace mr::cuda {

const Graphs::Graph* Graphs::find(uint64_t key) const {
  auto it = graphs_.find(key);
  return it == graphs_.end() ? nullptr : &it->second;
}

Tensor Graphs::capture(cudaStream_t stream, uint64_t key, FunctionRef<Tensor()> step) {
  cudaGraph_t graph = nullptr;
  Graph made;
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
  return made.result;
}

void Graphs::forget() {
  for (auto& [key, graph] : graphs_) cudaGraphExecDestroy(graph.exec);
  graphs_.clear();
}

}  // namespace mr::cuda
