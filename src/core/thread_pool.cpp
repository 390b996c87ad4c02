#include "core/thread_pool.h"

#include <algorithm>
#include <exception>

namespace mr {

struct ThreadPool::Job {
  FunctionRef<void(int64_t, int64_t, int)> f;
  int64_t grain;
  std::atomic<bool> failed{false};
  std::exception_ptr error;
};

// Long enough to bridge the gap between two operations of a step, short enough to leave the core to the server's threads.
static constexpr int kSpins = 4000;

static void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

ThreadPool::ThreadPool(int n_threads) : ranges_(new Range[size_t(std::max(n_threads, 1))]) {
  for (int i = 1; i < n_threads; i++) workers_.emplace_back([this, i] { work(i); });
}

ThreadPool::~ThreadPool() {
  stop_ = true;
  generation_++;
  generation_.notify_all();
  for (auto& w : workers_) w.join();
}

void ThreadPool::take_pieces(Job& job, int worker) {
  try {
    for (int i = 0; i < size(); i++) {
      Range& range = ranges_[size_t((worker + i) % size())];
      for (;;) {
        int64_t begin = range.next.fetch_add(job.grain, std::memory_order_relaxed);
        if (begin >= range.end || job.failed.load(std::memory_order_relaxed)) break;
        job.f(begin, std::min(begin + job.grain, range.end), worker);
      }
    }
  } catch (...) {
    if (!job.failed.exchange(true)) job.error = std::current_exception();
  }
}

void ThreadPool::work(int worker) {
  uint32_t seen = 0;
  for (;;) {
    for (int i = 0; i < kSpins && generation_.load(std::memory_order_acquire) == seen; i++) pause();
    generation_.wait(seen, std::memory_order_acquire);
    if (stop_) return;
    seen = generation_.load(std::memory_order_acquire);
    inside_.fetch_add(1);  // before job_ is read: the caller clears job_, then waits until nobody is inside
    if (Job* job = job_.load()) take_pieces(*job, worker);
    inside_.fetch_sub(1);
  }
}

void ThreadPool::parallel(int64_t n, int64_t grain, FunctionRef<void(int64_t, int64_t, int)> f) {
  if (n <= 0) return;
  grain = std::max<int64_t>(grain, 1);
  if (workers_.empty() || n <= grain) {
    for (int64_t begin = 0; begin < n; begin += grain) f(begin, std::min(begin + grain, n), 0);
    return;
  }
  int64_t pieces = (n + grain - 1) / grain;
  for (int i = 0; i < size(); i++) {
    ranges_[size_t(i)].next = std::min(n, pieces * i / size() * grain);
    ranges_[size_t(i)].end = std::min(n, pieces * (i + 1) / size() * grain);
  }
  Job job{f, grain};
  job_ = &job;
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  take_pieces(job, 0);
  job_ = nullptr;
  while (inside_.load() != 0) pause();
  if (job.error) std::rethrow_exception(job.error);
}

}  // namespace mr
