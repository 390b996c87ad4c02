// What work for somebody may take: time, until a deadline or until nobody wants it any more, and memory, which it asks for.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <new>
#include <stop_token>

#include "core/error.h"

namespace mr {

struct Stopped : Error {
  using Error::Error;
};

struct Allowance {
  std::stop_token stop = {};
  std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max();
  // Asked for so many bytes more, which are the work's until its end; false: they are too many. Empty: nobody counts.
  std::function<bool(size_t bytes)> grant = {};

  void check_time(const char* what) const {  // throws Stopped
    if (stop.stop_requested()) throw Stopped(sentence("{} was stopped", what));
    if (std::chrono::steady_clock::now() >= deadline) throw Stopped(sentence("{} takes longer than is allowed", what));
  }
  void hold(size_t bytes) const {  // before they are taken; throws what an allocation that fails throws
    if (grant && !grant(bytes)) throw std::bad_alloc();
  }
};

// For loops: looks at the time about once a millisecond.
class TimedLoop {
 public:
  TimedLoop(const Allowance& allowance, const char* what) : allowance_(allowance), what_(what) {}

  // Call it before doing that much, in units of about a nanosecond.
  void work(size_t units) {
    if (units >= left_) [[unlikely]] {
      allowance_.check_time(what_);
      left_ = between_looks;
    }
    left_ -= std::min(units, left_);
  }

 private:
  static constexpr size_t between_looks = 1 << 20;
  const Allowance& allowance_;
  const char* what_;
  size_t left_ = 0;  // units until the next look
};

}  // namespace mr
