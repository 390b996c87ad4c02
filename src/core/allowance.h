// Limits of work for a client: time, until a deadline or a stop request, and memory, granted on request.
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
  // Requests this many more bytes, held until the work ends; false: denied. Empty: unlimited.
  std::function<bool(size_t bytes)> grant = {};

  void check_time(const char* what) const {  // throws Stopped
    if (stop.stop_requested()) throw Stopped(sentence("{} was stopped", what));
    if (std::chrono::steady_clock::now() >= deadline) throw Stopped(sentence("{} takes longer than is allowed", what));
  }
  void hold(size_t bytes) const {  // before allocating; throws like a failed allocation
    if (grant && !grant(bytes)) throw std::bad_alloc();
  }
};

// For loops: checks the clock about once a millisecond.
class TimedLoop {
 public:
  TimedLoop(const Allowance& allowance, const char* what) : allowance_(allowance), what_(what) {}

  // Call before the work, in units of about a nanosecond.
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
  size_t left_ = 0;  // units until the next check
};

}  // namespace mr
