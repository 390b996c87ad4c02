// Activations of one step: a bump allocator, reset before the next. Its size is planned once, so a forward never allocates.
#pragma once

#include "core/error.h"
#include "core/tensor.h"

namespace mr {

class Arena {
 public:
  explicit Arena(size_t bytes) : buffer_(bytes) {}
  explicit Arena(Buffer buffer) : buffer_(std::move(buffer)) {}

  Tensor tensor(DType dtype, std::initializer_list<int64_t> shape) {
    Tensor t = view(nullptr, dtype, shape);
    t.data = take(size_t(t.bytes()));
    return t;
  }
  void* take(size_t bytes) {
    size_t begin = used_, end = begin + (bytes + 63) / 64 * 64;
    check(end <= buffer_.size(), "the workspace of {} bytes is too small: {} more are needed", buffer_.size(), end - buffer_.size());
    used_ = end;
    if (used_ > peak_) peak_ = used_;
    return buffer_.data() + begin;
  }
  size_t mark() const { return used_; }
  void release(size_t mark) { used_ = mark; }  // everything taken since mark()
  size_t peak() const { return peak_; }

 private:
  Buffer buffer_;
  size_t used_ = 0, peak_ = 0;
};

// What a block takes is given back when it ends.
class ArenaScope {
 public:
  explicit ArenaScope(Arena& arena) : arena_(arena), mark_(arena.mark()) {}
  ~ArenaScope() { arena_.release(mark_); }
  ArenaScope(const ArenaScope&) = delete;

 private:
  Arena& arena_;
  size_t mark_;
};

}  // namespace mr
