// cuBLASLt, found and loaded at run time: it may lie in the toolkit, among the system's libraries or in a Python environment.
// Algorithms are chosen by timing the library's proposals, once for a range of row counts: a server meets a new count in every step.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <tuple>

#include "backend/cuda/kernels.h"

namespace mr::cuda {

class Cublas {
 public:
  // Null where no cuBLASLt is found; `found` then says where it was looked for, else which file it is.
  static std::unique_ptr<Cublas> open(std::string& found);
  ~Cublas();

  // y = scale * x . weight^T, added to y if `onto`. All rows 16-byte aligned; y is f32 or bf16. False: no algorithm for this shape.
  bool product(cudaStream_t, const Product&, bool onto);

 private:
  struct Library;
  struct Choice;
  struct Algorithm;
  using Key = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, int, bool>;
  explicit Cublas(std::unique_ptr<Library>);
  static Key key_of(const Product&, int64_t rows, bool onto);
  Choice choose(cudaStream_t, const Product&, bool onto);
  void time(cudaStream_t, const Product&, bool onto, Choice&);

  std::unique_ptr<Library> library_;
  std::map<Key, Choice> choices_;        // by the exact shape
  std::map<Key, Algorithm> algorithms_;  // by the shape with its rows rounded
  void* workspace_ = nullptr;
};

}  // namespace mr::cuda
