// How steps follow each other: one after the other (serial), the next planned by a companion thread while one runs (overlapped), or,
// where the backend queues its work, the next launched before the last one's tokens are known (ahead).
//
// A step passes between scheduler and runner three times: the scheduler plans it, commits it as soon as the runner has written it down,
// and absorbs what it found out.
#pragma once

#include <functional>
#include <memory>

#include "engine/runner.h"
#include "engine/scheduler.h"

namespace mr {

// What becomes of requests around a step. Called on the loop's thread or, while a step runs, on its companion; never on both at once.
class Desk {
 public:
  virtual void read_mail() = 0;     // takes in what was submitted and cancelled
  virtual void deliver_news() = 0;  // tells the readers
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

  // One turn: reads the mail, runs or launches a step, takes the results that are due. False: there was nothing to run. Throws where a
  // step or its planning failed: no state can be trusted then, and forget() must follow.
  virtual bool turn(bool more_may_come) = 0;
  virtual bool in_flight() const { return false; }  // a step was launched whose results nobody has seen
  virtual void forget();                            // every step that was launched

 protected:
  using Instant = Clock::time_point;
  struct Launched {
    StepPlan* step = nullptr;  // null: none
    Instant begin{};
  };
  explicit StepLoop(Parts parts) : parts_(std::move(parts)) {}
  void plan(bool more_may_come);
  Launched launch();        // commits the planned step and writes it down
  void compute(StepPlan&);  // until its tokens are chosen, or queued to be
  void finish(Launched);    // takes its results

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
