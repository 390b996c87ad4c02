// What the server counts, as Prometheus reads it.
#pragma once

#include <array>
#include <mutex>
#include <string>
#include <vector>

#include "engine/metrics.h"
#include "engine/request.h"

namespace mr {

class Histogram {
 public:
  explicit Histogram(std::vector<double> bounds) : bounds_(std::move(bounds)), counts_(bounds_.size() + 1) {}
  void observe(double x);
  void write(std::string& out, const char* name, const char* help) const;

 private:
  std::vector<double> bounds_;   // ascending
  std::vector<int64_t> counts_;  // of each bucket alone; the last one is beyond every bound
  double sum_ = 0;
};

// Any thread.
class ServeMetrics {
 public:
  ServeMetrics();
  void answered(const TokenEvent&, double seconds);  // the last event of an answer, and the time since its request came
  void responded(int status);
  void refused() { count(n_refused_); }
  std::string text(const Stats&, int n_waiting, int64_t n_waiting_tokens, double step_age_s) const;

 private:
  void count(int64_t& n);

  mutable std::mutex mutex_;
  Histogram ttft_, tpot_, e2e_;
  std::array<int64_t, 5> finished_{};   // by Finish
  std::array<int64_t, 6> responses_{};  // by the first digit of the status
  int64_t n_refused_ = 0;
};

}  // namespace mr
