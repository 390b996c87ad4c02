// Progress of a pull: a line redrawn in place on a terminal, plain lines now and then elsewhere.
#pragma once

#include <chrono>
#include <deque>
#include <mutex>
#include <string>

#include "core/progress.h"
#include "pull/download.h"

namespace mr {

class PullProgress {
 public:
  void show(const DownloadState&);
  void note(const std::string& sentence);  // any thread
  void finish();

 private:
  using Clock = std::chrono::steady_clock;
  double rate(const DownloadState&);  // bytes a second over the last seconds
  std::mutex mutex_;
  Progress line_;
  std::deque<std::pair<Clock::time_point, int64_t>> past_;
  Clock::time_point told_ = Clock::now();
};

}  // namespace mr
