// Runs a planned step: writes it into a step buffer, runs the model, lets the backend sample. Two steps may be in flight: the
// next is prepared and launched while the backend works on the last.
#pragma once

#include <deque>
#include <span>
#include <vector>

#include "engine/scheduler.h"
#include "engine/step_buffer.h"
#include "model/model.h"

namespace mr {

class Runner {
 public:
  Runner(const Model&, Backend&, const StateStore&, const SchedulerLimits&, int max_context);

  void observe(Observer* observer) { observer_ = observer; }  // null: none

  void prepare(const StepPlan&);       // copies the step into a buffer; the plan's sequences may change afterwards
  void forward();                      // of the step prepared last
  Tensor logits();                     // of that forward, on the host: f32 [n_out, vocab], until it is sampled
  void launch_sample();                // samples its tokens; overwrites the logits
  void forget();                       // discards every launched step
  std::span<const Sampled> collect();  // of the oldest step not collected; valid until the next collect

 private:
  // Calls f and reports it to the observer, if there is one and `what` is not empty.
  template <class F>
  void observe(F f, std::string_view what) {
    if (!observer_ || what.empty()) return f();
    observer_->begin();
    f();
    backend_.synchronize();
    observer_->ran(what);
  }
  int padding(const StepPlan&) const;
  void write_padding(int first, int n);
  void write_rows(const StepPart&, int seq, int first_row);
  void write_tables(const SequenceState&, int seq, int first_row, int n_rows);
  int write_outputs(const StepPart&, int first_row, int n_edits);

  const Model& model_;
  Backend& backend_;
  const StateMemory &state_, &host_;
  Arena arena_;
  const int max_tokens_, max_out_;  // of a step
  Observer* observer_ = nullptr;
  std::vector<UnitCopy> copies_;
  struct Written {
    StepBuffer buffer;
    std::vector<GroupTable> tables;  // referenced by the batch
  };
  Written written_[2];
  int turn_ = 0;  // written_[turn_] is the step prepared last
  StepArrays* arrays_ = nullptr;
  std::vector<int> n_units_;  // scratch, per group
  bool uniform_ = false;      // the step has one row and one output per sequence
  Batch batch_;               // on the backend
  Tensor logits_;
  std::vector<float> host_logits_;
  std::deque<int> n_out_;  // of steps launched and not collected
  std::vector<Sampled> sampled_;
};

}  // namespace mr
