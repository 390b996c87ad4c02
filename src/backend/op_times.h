// Profiles a step: an observer that records how long every operation took, by kind and shape. It synchronizes after each operation, so
// nothing is pipelined or replayed as a graph, and the times add up to more than an unobserved step takes.
#pragma once

#include <chrono>
#include <map>
#include <string>

#include "backend/backend.h"

namespace mr {

struct OpTime {
  int64_t calls = 0;
  double seconds = 0;
  double bytes = 0;  // of weights that products read; 0: not counted
  double flops = 0;  // of products
};

class OpTimes final : public Observer {
 public:
  const std::map<std::string, OpTime>& times() const { return times_; }  // products by shape and format, marks by their operations
  void reset() { times_.clear(); }

  void begin() override { since_ = Clock::now(); }
  void ran(const Bound&, int first, int count) override;
  void ran(std::string_view what) override { note(std::string(what)); }

 private:
  using Clock = std::chrono::steady_clock;
  OpTime& note(const std::string& what);
  std::map<std::string, OpTime> times_;
  Clock::time_point since_{};
};

}  // namespace mr
