// Carries a planned step out: writes it into the step buffer, runs the model over it, lets the backend choose tokens.
#pragma once

#include <span>
#include <vector>

#include "engine/scheduler.h"
#include "engine/step_buffer.h"
#include "model/model.h"

namespace mr {

class Runner {
 public:
  Runner(const Model&, Backend&, const StateStore&, const SchedulerLimits&);

  void prepare(const StepPlan&);      // writes the step down; the plan's sequences may change afterwards
  Tensor forward();                   // f32 [n_out, vocab] as the model gives them, until the next forward
  std::span<const Sampled> sample();  // one per output row of that forward, until the next sample; changes the logits

 private:
  void write_rows(const StepPart&, int seq, int first_row);
  void write_tables(const SequenceState&, int seq, int first_row, int n_rows);
  int write_outputs(const StepPart&, int first_row, int n_edits);

  const Model& model_;
  Backend& backend_;
  const StateMemory &state_, &host_;
  Arena arena_;
  std::vector<UnitCopy> copies_;
  StepBuffer buffer_;
  StepArrays* arrays_ = nullptr;
  std::vector<int> n_units_;        // scratch, per group
  std::vector<GroupTable> tables_;  // what batch_ points to
  Batch batch_;
  Tensor logits_;
  std::vector<Sampled> sampled_;
};

}  // namespace mr
