// Logs every launch as a line, to compare builds. Without a sink it costs one branch per launch.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <string>

namespace mr::cuda {

class LaunchLog {
 public:
  void to(std::function<void(const std::string&)> sink) { sink_ = std::move(sink); }  // empty: stops logging
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
