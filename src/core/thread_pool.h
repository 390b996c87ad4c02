// A fork-join pool for kernels. The calling thread works too; results never depend on the number of workers, because every output
// element is computed by one of them.
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

// A non-owning callable: valid for the duration of the call it is passed to.
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

  // Calls f(begin, end, worker) over pieces of [0, n), each at most `grain` long, until all are done. Each worker starts with its own
  // share, so that one core reads adjacent memory in order; a worker that is done steals from the others, so that one which was
  // descheduled delays a single piece. One caller at a time.
  void parallel(int64_t n, int64_t grain, FunctionRef<void(int64_t begin, int64_t end, int worker)> f);

 private:
  struct Job {
    FunctionRef<void(int64_t, int64_t, int)> f;
    int64_t n, grain;
  };
  // Written by one worker, on separate cache lines: one that others steal from, one that the caller polls. A word holds the number of a
  // call and, in its low kCountBits, a count: a word of an earlier call is recognized as stale, so none is ever reset.
  struct Share {
    alignas(64) std::atomic<uint64_t> next{0};  // the first piece of the share not yet claimed
    alignas(64) std::atomic<uint64_t> done{0};  // pieces finished by the worker
  };
  static constexpr int kCountBits = 24;
  static constexpr uint64_t kCount = (uint64_t(1) << kCountBits) - 1;

  void work(int worker);
  void take_pieces(uint64_t call, int worker);
  int64_t claim(uint64_t call, int share);
  bool wait(uint64_t seen);

  // Where share i of `pieces` pieces begins. If they differ, the first are larger: the caller starts first.
  int64_t share_begin(int64_t pieces, int i) const { return (pieces * i + size() - 1) / size(); }

  std::unique_ptr<Share[]> shares_;  // one a worker
  std::vector<std::thread> workers_;
  std::atomic<bool> failed_{false};
  std::exception_ptr error_;
  alignas(64) std::atomic<uint64_t> call_{0};  // (number of the call << 32 | its pieces)
  std::atomic<Job*> job_{nullptr};             // of that call; only read after claiming a piece of it
  std::atomic<bool> stop_{false};
  alignas(64) std::atomic<int> sleepers_{0};  // not on the cache line that spinning workers poll
  std::atomic<uint32_t> wake_{0};             // sleepers wait for it to change
};

}  // namespace mr
