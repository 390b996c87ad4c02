// A fork-join pool for kernels. The calling thread works too; results never depend on how many workers there are,
// because every output element is computed whole by whoever takes it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

namespace mr {

// A borrowed callable: valid for the duration of the call it is passed to.
template <class Signature>
class FunctionRef;
template <class R, class... Args>
class FunctionRef<R(Args...)> {
 public:
  template <class F>
    requires(!std::is_same_v<std::decay_t<F>, FunctionRef>)
  FunctionRef(F&& f)
      : object_(const_cast<void*>(static_cast<const void*>(&f))),
        call_([](void* o, Args... args) -> R { return (*static_cast<std::remove_reference_t<F>*>(o))(args...); }) {}
  R operator()(Args... args) const { return call_(object_, args...); }

 private:
  void* object_;
  R (*call_)(void*, Args...);
};

class ThreadPool {
 public:
  explicit ThreadPool(int n_threads);  // workers including the caller; at least 1
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;

  int size() const { return int(workers_.size()) + 1; }

  // Calls f(begin, end, worker) over pieces of [0, n), each at most `grain` long, until all are done. Each worker begins in a
  // share of its own, so that neighbouring pieces, and the memory behind them, are read by one core in order; who is done
  // helps the others, so that a worker which the system takes away for a while delays one piece only. One caller at a time.
  void parallel(int64_t n, int64_t grain, FunctionRef<void(int64_t begin, int64_t end, int worker)> f);

 private:
  struct Job {
    FunctionRef<void(int64_t, int64_t, int)> f;
    int64_t n, grain;
  };
  // What one worker writes, on cache lines of its own: one that others take pieces from, one that the caller watches. Words hold the number
  // of a call and, in their last kCountBits, a count: one of an earlier call is known as such, and nobody has to reset it.
  struct Share {
    alignas(64) std::atomic<uint64_t> next{0};  // the first piece of the share that nobody has taken
    alignas(64) std::atomic<uint64_t> done{0};  // pieces that the worker has finished
  };
  static constexpr int kCountBits = 24;
  static constexpr uint64_t kCount = (uint64_t(1) << kCountBits) - 1;

  void work(int worker);
  void take_pieces(uint64_t call, int worker);
  int64_t claim(uint64_t call, int share);
  bool wait(uint64_t seen);

  // Share i of `pieces` pieces begins here. The first ones are the larger ones, if they differ: the caller begins first.
  int64_t share_begin(int64_t pieces, int i) const { return (pieces * i + size() - 1) / size(); }

  std::unique_ptr<Share[]> shares_;  // one a worker
  std::vector<std::thread> workers_;
  std::atomic<bool> failed_{false};
  std::exception_ptr error_;
  alignas(64) std::atomic<uint64_t> call_{0};  // (number of the call << 32 | its pieces)
  std::atomic<Job*> job_{nullptr};             // of that call: to be read by those who have claimed a piece of it
  std::atomic<bool> stop_{false};
  alignas(64) std::atomic<int> sleepers_{0};  // apart from what workers look at while they spin
  std::atomic<uint32_t> wake_{0};             // sleepers wait for it to change
};

}  // namespace mr
