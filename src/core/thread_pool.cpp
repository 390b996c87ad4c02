#include "core/thread_pool.h"

#include <algorithm>
#include <exception>

namespace mr {

struct ThreadPool::Job {
  FunctionRef<void(int64_t, int64_t, int)> f;
  int64_t n, grain;
  std::atomic<int64_t> next{0};
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

ThreadPool::ThreadPool(int n_threads) {
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
    for (;;) {
      int64_t begin = job.next.fetch_add(job.grain, std::memory_order_relaxed);
      if (begin >= job.n) return;
      job.f(begin, std::min(begin + job.grain, job.n), worker);
    }
  } catch (...) {
    if (!job.failed.exchange(true)) job.error = std::current_exception();
    job.next = job.n;
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
  Job job{f, n, grain};
  if (workers_.empty() || n <= grain) {
    take_pieces(job, 0);
  } else {
    job_ = &job;
    generation_.fetch_add(1, std::memory_order_release);
    generation_.notify_all();
    take_pieces(job, 0);
    job_ = nullptr;
    while (inside_.load() != 0) pause();
  }
  if (job.error) std::rethrow_exception(job.error);
}

}  // namespace mr
