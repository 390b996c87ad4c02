// Memory for the activations of one step. Its size is planned once, so a forward never allocates.
#pragma once

#include "core/error.h"
#include "core/tensor.h"

namespace mr {

class Arena {
 public:
  explicit Arena(size_t bytes) : buffer_(bytes) {}
  explicit Arena(Buffer buffer) : buffer_(std::move(buffer)) {}

  std::byte* take(size_t bytes) {  // from the start of the arena: invalidates earlier memory
    check(bytes <= buffer_.size(), "the workspace of {} bytes is too small: {} more are needed", buffer_.size(), bytes - buffer_.size());
    return buffer_.data();
  }
  const std::byte* data() const { return buffer_.data(); }

 private:
  Buffer buffer_;
};

}  // namespace mr
