#include "core/thread_pool.h"

#include <algorithm>
#include <utility>

namespace mr {

// Long enough to bridge the gap between two operations of a step, short enough to yield the core to the server's threads.
static constexpr int kSpins = 4000;
static constexpr int kSpinsBeforeYield = 20000;  // of the caller at the end of a call: a worker has probably been descheduled

static void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

ThreadPool::ThreadPool(int n_threads) : shares_(new Share[size_t(std::max(n_threads, 1))]) {
  for (int i = 1; i < n_threads; i++) workers_.emplace_back();
  for (int i = 1; i < n_threads; i++) workers_[size_t(i - 1)] = std::thread([this, i] { work(i); });
}

ThreadPool::~ThreadPool() {
  stop_ = true;
  wake_++;
  wake_.notify_all();
  for (auto& w : workers_) w.join();
}

// The next piece of a share; -1: none. After success the call cannot end before this piece is done.
int64_t ThreadPool::claim(uint64_t call, int share) {
  const int64_t pieces = int64_t(call & kCount), begin = share_begin(pieces, share), end = share_begin(pieces, share + 1);
  std::atomic<uint64_t>& next = shares_[size_t(share)].next;
  uint64_t word = next.load(std::memory_order_acquire);
  for (;;) {
    const uint64_t number = call & ~kCount, its_number = word & ~kCount;
    const int64_t piece = its_number == number ? int64_t(word & kCount) : begin;
    if (its_number > number || piece >= end) return -1;
    const uint64_t taken = number | uint64_t(piece + 1);
    if (next.compare_exchange_weak(word, taken, std::memory_order_acq_rel, std::memory_order_acquire)) return piece;
  }
}

void ThreadPool::take_pieces(uint64_t call, int worker) {
  uint64_t done = call & ~kCount;
  for (int i = 0; i < size(); i++) {
    const int share = worker + i < size() ? worker + i : worker + i - size();
    const uint64_t before = done;
    for (int64_t piece; (piece = claim(call, share)) >= 0; done++) {
      if (failed_.load(std::memory_order_relaxed)) continue;
      const Job& job = *job_.load(std::memory_order_relaxed);
      try {
        job.f(piece * job.grain, std::min((piece + 1) * job.grain, job.n), worker);
      } catch (...) {
        if (!failed_.exchange(true)) error_ = std::current_exception();
      }
    }
    if (done != before) shares_[size_t(worker)].done.store(done, std::memory_order_release);
  }
}

// True: there is a call other than `seen`, or the pool stops. Spins for a while, then sleeps.
bool ThreadPool::wait(uint64_t seen) {
  auto news = [&] { return call_.load(std::memory_order_acquire) != seen || stop_.load(std::memory_order_relaxed); };
  for (int i = 0; i < kSpins; i++) {
    if (news()) return true;
    pause();
  }
  // Sequentially consistent: either the caller sees this sleeper after writing its call, or the sleeper sees the call.
  sleepers_++;
  const uint32_t wake = wake_.load();
  if (call_.load() == seen && !stop_) wake_.wait(wake);
  sleepers_--;
  return news();
}

void ThreadPool::work(int worker) {
  uint64_t seen = 0;
  for (;;) {
    while (!wait(seen)) {
    }
    if (stop_) return;
    seen = call_.load(std::memory_order_acquire);
    take_pieces(seen, worker);
  }
}

void ThreadPool::parallel(int64_t n, int64_t grain, FunctionRef<void(int64_t, int64_t, int)> f) {
  if (n <= 0) return;
  grain = std::max<int64_t>({grain, 1, (n >> (kCountBits - 1)) + 1});
  if (workers_.empty() || n <= grain) {
    for (int64_t begin = 0; begin < n; begin += grain) f(begin, std::min(begin + grain, n), 0);
    return;
  }
  const int64_t pieces = (n + grain - 1) / grain;
  Job job{f, n, grain};
  job_.store(&job, std::memory_order_relaxed);
  const uint64_t call = ((call_.load(std::memory_order_relaxed) >> kCountBits) + 1) << kCountBits | uint64_t(pieces);
  call_.store(call);
  if (sleepers_.load() > 0) {
    wake_++;
    wake_.notify_all();
  }
  take_pieces(call, 0);
  for (int spins = 0;; spins++) {
    int64_t done = 0;
    for (int i = 0; i < size(); i++) {
      const uint64_t word = shares_[size_t(i)].done.load(std::memory_order_acquire);
      if ((word & ~kCount) == (call & ~kCount)) done += int64_t(word & kCount);
    }
    if (done == pieces) break;
    if (spins < kSpinsBeforeYield)
      pause();
    else
      std::this_thread::yield();
  }
  if (failed_) {
    failed_ = false;
    std::rethrow_exception(std::exchange(error_, nullptr));
  }
}

}  // namespace mr
