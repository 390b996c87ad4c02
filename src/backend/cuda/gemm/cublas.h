// cuBLASLt, loaded at run time from the toolkit, the system's libraries or a Python environment.
// The library proposes algorithms for a range of row counts (a server sees a new count in every step); the layers of the first step
// in a range try them in turn, and the fastest is kept. So tuning needs no extra products and does not block.
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
  // Null if no cuBLASLt is found; `found` is then the list of paths tried, else the file.
  static std::unique_ptr<Cublas> open(std::string& found);
  ~Cublas();

  // y = scale * x . weight^T, added to y if `onto`. All rows 16-byte aligned; y is f32 or bf16. False: no algorithm for this shape.
  bool product(cudaStream_t, const Product&, bool onto);
  static int64_t workspace_bytes();
  void decide();  // waits for all timings: a graph should capture the fastest algorithm

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
  std::future<void> awake_;          // wake(), awaited before the first product
  std::map<Key, Shape> shapes_;      // by the exact shape
  std::map<Key, Contest> contests_;  // by the shape with its rows rounded
  void* workspace_ = nullptr;
};

}  // namespace mr::cuda
