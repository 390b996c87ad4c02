// One budget for all memory that clients make the server hold. The owner of bytes owns a Charge for them, raised before they are allocated:
//   a connection            a fixed charge, reserved for the maximum of connections: buffers, headers, pipelined input, a little output
//   a body being received   its buffer, as the bytes arrive, whatever length was announced
//   a request being parsed  its body and the JSON built from it, on a worker
//   a request waiting       its prompts, biases and stop strings, until the answer ends
//   an answer               its text and log-probabilities, while they are collected
//   unread output           bytes written that the client has not taken yet
// A denied charge is a 503 or the end of its connection. Before that, connections that hold memory and have waited longest for their
// client are cut, and a body or a worker pauses until they have released it.
// State, weights and the engine's buffers are not charged here: they are planned when the model is loaded.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <utility>

namespace mr {

// Any thread.
class MemoryBudget {
 public:
  explicit MemoryBudget(size_t limit) : limit_(limit) {}

  // `untouched`: this much of the limit is left to others.
  [[nodiscard]] bool take(size_t n, size_t untouched = 0) {
    for (size_t used = used_; n <= limit_ - untouched && used <= limit_ - untouched - n;) {
      if (!used_.compare_exchange_weak(used, used + n)) continue;
      for (size_t peak = peak_; peak < used + n && !peak_.compare_exchange_weak(peak, used + n);) {
      }
      return true;
    }
    n_denied_++;
    return false;
  }
  void give(size_t n) { used_ -= n; }

  size_t limit() const { return limit_; }
  size_t used() const { return used_; }
  size_t unused() const { return limit_ - used_; }
  size_t peak() const { return peak_; }
  size_t n_denied() const { return n_denied_; }

 private:
  const size_t limit_;
  std::atomic<size_t> used_{0}, peak_{0}, n_denied_{0};
};

// The bytes of one owner, released with it. Without a budget everything is granted. Large charges leave an eighth of the budget to
// small ones, so that large requests do not lock small ones out.
class Charge {
 public:
  static constexpr size_t little = 1 << 20;
  Charge() = default;
  explicit Charge(MemoryBudget& budget) : budget_(&budget) {}
  Charge(Charge&& other) noexcept : budget_(other.budget_), n_(std::exchange(other.n_, 0)) {}
  Charge& operator=(Charge&& other) noexcept {
    std::swap(budget_, other.budget_);
    std::swap(n_, other.n_);
    return *this;
  }
  ~Charge() { (void)set(0); }

  // Sets the total to n bytes. False: denied, nothing has changed. Lowering always succeeds.
  [[nodiscard]] bool set(size_t n) {
    if (budget_ && n > n_ && !budget_->take(n - n_, left_to_others(n))) {
      n_missing_ = n - n_ + left_to_others(n);
      return false;
    }
    if (budget_ && n < n_) budget_->give(n_ - n);
    n_ = n;
    return true;
  }
  size_t size() const { return n_; }
  size_t n_missing() const { return n_missing_; }  // bytes that had to be free for what was denied last
  // False: denied even if nobody else held anything.
  bool can_ever_be(size_t n) const { return !budget_ || n <= budget_->limit() - left_to_others(n); }

 private:
  size_t left_to_others(size_t n) const { return n > little ? budget_->limit() / 8 : 0; }

  MemoryBudget* budget_ = nullptr;
  size_t n_ = 0, n_missing_ = 0;
};

}  // namespace mr
