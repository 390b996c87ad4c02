// Small tables that kernels read, uploaded once and kept on the device: lists of experts, rotary frequencies.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "backend/cuda/attention/attention.h"
#include "backend/cuda/gemm/gemm.h"

namespace mr::cuda {

class Tables {
 public:
  using CopyIn = std::function<Buffer(const void* host, size_t bytes)>;
  explicit Tables(CopyIn copy_in) : copy_in_(std::move(copy_in)) {}
  const Packed* experts(std::span<const Weight>);  // all of one format
  Frequencies frequencies(const RopeTable&);
  int64_t bytes() const;  // device memory

 private:
  template <class T>
  const T* keep(const std::vector<T>&);

  CopyIn copy_in_;
  std::vector<Buffer> kept_;
  std::unordered_map<const float*, std::pair<std::vector<float>, const float*>> floats_;
  std::map<std::vector<const void*>, const Packed*> experts_;
};

}  // namespace mr::cuda
