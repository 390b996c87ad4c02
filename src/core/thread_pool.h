// A fork-join pool for kernels. The calling thread works too; results never depend on how many workers there are,
// because every output element is computed whole by whoever takes it.
#pragma once

#include <atomic>
#include <cstdint>
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
  // range of its own, so that neighbouring pieces, and the memory behind them, are read by one core in order; who is done
  // helps the others, so that a worker which the system takes away for a while delays one piece only. One caller at a time.
  void parallel(int64_t n, int64_t grain, FunctionRef<void(int64_t begin, int64_t end, int worker)> f);

 private:
  struct Job;
  struct alignas(64) Range {
    std::atomic<int64_t> next{0};
    int64_t end = 0;
  };
  void work(int worker);
  void take_pieces(Job&, int worker);

  std::unique_ptr<Range[]> ranges_;  // of the current job, one a worker
  std::vector<std::thread> workers_;
  std::atomic<Job*> job_{nullptr};
  std::atomic<uint32_t> generation_{0};
  std::atomic<int> inside_{0};  // workers that hold the job of the current generation
  std::atomic<bool> stop_{false};
};

}  // namespace mr
