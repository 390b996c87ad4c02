// How steps overlap: not at all (serial), the next planned by a companion thread while one runs (overlapped), or, if the
// backend is asynchronous, the next launched before the last one's tokens are known (ahead).
//
// A step passes between scheduler and runner three times: the scheduler plans it, commits it as soon as the runner has copied it,
// and absorbs its results.
#pragma once

#include <functional>
#include <memory>

#include "engine/runner.h"
#include "engine/scheduler.h"

namespace mr {

// Request handling around steps. Called on the loop's thread or, while a step runs, on its companion; never on both at once.
class Desk {
 public:
  virtual void read_mail() = 0;     // takes in submissions and cancellations
  virtual void deliver_news() = 0;  // calls the sinks
  virtual void has_news(Answering&) = 0;
  virtual void fail(Answering&, const char* why) = 0;

 protected:
  ~Desk() = default;
};

class StepLoop {
 public:
  struct Parts {
    Scheduler& scheduler;
    Runner& runner;
    Desk& desk;
    Metrics& metrics;
    std::function<void(const StepWork&)> on_step;  // may be empty
  };
  virtual ~StepLoop() = default;

  // One iteration: takes in requests, runs or launches a step, collects the results that are due. False: nothing to run. Throws if a
  // step or its planning failed: no state can be trusted then, and forget() must follow.
  virtual bool turn(bool more_may_come) = 0;
  virtual bool in_flight() const { return false; }  // a step was launched and its results are not collected
  virtual void forget();                            // discards every launched step

 protected:
  using Instant = Clock::time_point;
  struct Launched {
    StepPlan* step = nullptr;  // null: none
    Instant begin{};
  };
  explicit StepLoop(Parts parts) : parts_(std::move(parts)) {}
  void plan(bool more_may_come);
  Launched launch();        // commits the planned step and copies it
  void compute(StepPlan&);  // up to sampling, which may be asynchronous
  void finish(Launched);    // processes its results

  Parts parts_;

 private:
  void hand_out_logits(const StepPlan&, Tensor logits);
  void note(const Launched&);

  StepWork work_;       // scratch, for on_step
  Instant last_end_{};  // of a step
};

std::unique_ptr<StepLoop> make_serial_loop(StepLoop::Parts);
std::unique_ptr<StepLoop> make_overlapped_loop(StepLoop::Parts);
std::unique_ptr<StepLoop> make_ahead_loop(StepLoop::Parts);

}  // namespace mr
