// A second thread that runs one task in parallel with the caller: work that overlaps with a step.
#pragma once

#include <atomic>
#include <thread>

#include "core/thread_pool.h"

namespace mr {

class Companion {
 public:
  Companion() : thread_([this] { work(); }) {}
  ~Companion() {
    stop_ = true;
    post();
    thread_.join();
  }
  Companion(const Companion&) = delete;

  // Runs both, `beside` on the companion's thread, and returns when both are done. `beside` must not throw. If `here` throws,
  // the exception propagates after `beside` is done.
  void run(FunctionRef<void()> here, FunctionRef<void()> beside) {
    beside_ = &beside;
    post();
    struct Join {
      Companion& companion;
      ~Join() { companion.join(); }
    } join{*this};
    here();
  }

 private:
  void post() {
    posted_++;
    posted_.notify_one();
  }
  void join() {
    for (uint32_t done; (done = done_.load()) != posted_.load();) done_.wait(done);
  }
  void work() {
    for (uint32_t seen = 0;; seen++) {
      posted_.wait(seen);
      if (stop_) return;
      (*beside_)();
      done_++;
      done_.notify_one();
    }
  }

  FunctionRef<void()>* beside_ = nullptr;  // of the posted run
  std::atomic<uint32_t> posted_{0}, done_{0};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace mr
