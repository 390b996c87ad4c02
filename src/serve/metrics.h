// The server's metrics in Prometheus' text format. Most are numbers that the engine keeps anyway and that are read per scrape, so
// prometheus-cpp's registry would be a second copy of them to keep up to date; and Debian packs it with a web server and curl.
#pragma once

#include <array>
#include <mutex>
#include <string>
#include <vector>

#include "engine/metrics.h"
#include "engine/request.h"
#include "serve/http.h"
#include "state/memory_plan.h"

namespace mr {

class Histogram {
 public:
  explicit Histogram(std::vector<double> bounds) : bounds_(std::move(bounds)), counts_(bounds_.size() + 1) {}
  void observe(double x);
  void write(std::string& out, const char* name, const char* help) const;

 private:
  std::vector<double> bounds_;   // ascending
  std::vector<int64_t> counts_;  // per bucket, not cumulative; the last one is +Inf
  double sum_ = 0;
};

// The server's gauges, besides the engine's.
struct QueueStats {
  int64_t n_answers = 0;  // without a first token
  int64_t n_tokens = 0;   // of their prompts
  double step_age_s = 0;  // since the engine's last step; 0: it is idle
};

// How near the engine is to the machine's limits: bytes and flops of its steps, by the analysis.
struct LimitStats {
  static constexpr int interval_s = 10;
  double bytes_per_s = 0, flops_per_s = 0;     // the limits, measured before the first request; other programs may have disturbed it
  double bytes = 0, flops = 0;                 // since the start
  double memory_share = 0, compute_share = 0;  // of what the machine could have moved and computed in the last interval
};

// Any thread.
class ServeMetrics {
 public:
  ServeMetrics();
  void answered(const TokenEvent&, double seconds);  // the last event of an answer; seconds since its request arrived
  void responded(int status);
  void refused() { count(n_refused_); }
  // limits null: unknown.
  std::string text(const Stats&, const MemoryPlan&, const QueueStats&, const HttpStats&, const LimitStats*) const;

 private:
  void count(int64_t& n);
  void write_answers(std::string& out) const;

  mutable std::mutex mutex_;
  Histogram ttft_, tpot_, e2e_, queue_, prefill_, decode_;  // seconds
  Histogram prompt_, generated_;                            // tokens
  std::array<int64_t, 5> finished_{};                       // by Finish
  std::array<int64_t, 6> responses_{};                      // by the first digit of the status
  int64_t n_refused_ = 0;
};

}  // namespace mr
