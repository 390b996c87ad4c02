// Says what is launched, to whoever wants to compare: a line each. Without a reader a launch costs one test more.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <string>

namespace mr::cuda {

class LaunchLog {
 public:
  void to(std::function<void(const std::string&)> sink) { sink_ = std::move(sink); }  // empty: to nobody
  void kernel(const void* function, dim3 grid, dim3 block, size_t shared) const {
    if (sink_) sink_(line(function, grid, block, shared));
  }
  void note(const char* text) const {
    if (sink_) sink_(text);
  }
  template <class Text>
    requires std::is_invocable_v<Text>
  void note(Text&& text) const {
    if (sink_) sink_(text());
  }

 private:
  static std::string line(const void* function, dim3 grid, dim3 block, size_t shared);
  std::function<void(const std::string&)> sink_;
};

}  // namespace mr::cuda
