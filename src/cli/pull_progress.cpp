#include "cli/pull_progress.h"

#include "core/amounts.h"

namespace mr {

using namespace std::chrono_literals;

double PullProgress::rate(const DownloadState& s) {
  const auto now = Clock::now();
  past_.emplace_back(now, s.fetched);
  while (past_.size() > 2 && now - past_.front().first > 5s) past_.pop_front();
  const double seconds = std::chrono::duration<double>(now - past_.front().first).count();
  return seconds > 0.2 ? double(s.fetched - past_.front().second) / seconds : 0;
}

void PullProgress::show(const DownloadState& s) {
  std::lock_guard lock(mutex_);
  const double speed = rate(s);
  const int percent = s.total ? int(s.done * 100 / s.total) : 100;
  std::string text = fmt::format("{:3} %  {} of {}", percent, bytes_text(s.done), bytes_text(s.total));
  if (!s.waits.empty())
    text += "  " + s.waits;
  else if (speed > 0)
    text += fmt::format("  {}/s  {} left", bytes_text(int64_t(speed)), clock_text(double(s.total - s.done) / speed));
  if (isatty(STDERR_FILENO)) return line_.show(fmt::format("pulling [{:<25}] {}", std::string(size_t(percent / 4), '='), text));
  if (Clock::now() - told_ < 10s) return;
  told_ = Clock::now();
  fmt::print(stderr, "{}\n", text);
}

void PullProgress::note(const std::string& sentence) {
  std::lock_guard lock(mutex_);
  line_.show("");
  fmt::print(stderr, "{}\n", sentence);
}

void PullProgress::finish() {
  std::lock_guard lock(mutex_);
  line_.show("");
}

}  // namespace mr
