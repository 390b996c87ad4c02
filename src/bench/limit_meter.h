// How near a running server is to this machine's limits, for /metrics.
#pragma once

#include <array>
#include <mutex>
#include <optional>

#include "bench/measure.h"
#include "serve/metrics.h"

namespace mr {

class LimitMeter {
 public:
  // Probes the limits before the first step, in about a tenth of a second. The engine must outlive all calls of note().
  void measure(Engine&, Isa);
  void note(const StepWork&);  // on the engine's thread
  LimitStats read() const;     // any thread

 private:
  struct Second {
    int64_t number = -1;  // by the steady clock
    double memory_s = 0, compute_s = 0;
  };
  static int64_t now();

  std::optional<StepCosts> costs_;
  Chip chip_;
  mutable std::mutex mutex_;
  LimitStats sums_;
  std::array<Second, LimitStats::interval_s + 1> seconds_;  // the current one, and the interval before it
};

}  // namespace mr
