// cuBLASLt, found and loaded at run time: it may lie in the toolkit, among the system's libraries or in a Python environment.
// The library proposes algorithms for a range of row counts (a server meets a new count in every step); the layers of the first step
// that meets one take them in turn, and the fastest stays. So nothing is computed for the sake of timing, and nobody waits for it.
#pragma once

#include <future>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "backend/cuda/gemm/gemm.h"

namespace mr::cuda {

class Cublas {
 public:
  // Null where no cuBLASLt is found; `found` then says where it was looked for, else which file it is.
  static std::unique_ptr<Cublas> open(std::string& found);
  ~Cublas();

  // y = scale * x . weight^T, added to y if `onto`. All rows 16-byte aligned; y is f32 or bf16. False: no algorithm for this shape.
  bool product(cudaStream_t, const Product&, bool onto);
  static int64_t workspace_bytes();
  void decide();  // waits until all that was timed is known; what is captured in a graph should be the fastest

 private:
  struct Library;
  struct Shape;
  struct Contest;
  struct Algorithm;
  using Key = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, int, bool>;
  explicit Cublas(std::unique_ptr<Library>);
  static Key key_of(const Product&, int64_t rows, bool onto);
  Shape shape_of(const Product&) const;
  std::vector<Algorithm> propose(const Shape&) const;
  void wake();
  Shape describe(const Product&, bool onto);
  void forget_shapes();

  std::unique_ptr<Library> library_;
  std::future<void> awake_;          // nothing is asked of the library before
  std::map<Key, Shape> shapes_;      // by the exact shape
  std::map<Key, Contest> contests_;  // by the shape with its rows rounded
  void* workspace_ = nullptr;
};

}  // namespace mr::cuda
