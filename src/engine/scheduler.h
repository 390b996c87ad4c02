// Who computes what in the next step: iteration-level continuous batching (Orca, 2022) with prompts cut into chunks
// (Sarathi, 2023). Decode rows go first, then chunks of prompts in order, all under one budget of rows.
//
// Every sequence has its place in one total order (Sequence::before). When memory runs out the last running sequence loses its
// state and waits again; nobody passes a waiting one. So the first always moves on, and everyone becomes first:
// nobody starves while requests of better priority end. max_seqs <= max_batch_tokens, so a running sequence that is not
// blocked by earlier prompts gets at least one row a step.
#pragma once

#include <set>
#include <vector>

#include "engine/metrics.h"
#include "engine/sequence.h"
#include "state/state_manager.h"

namespace mr {

struct SchedulerLimits {
  int max_seqs = 16;           // running at once
  int max_batch_tokens = 512;  // rows of a step
  int max_scored = 64;         // output rows of a step that only score a prompt: bounds the memory for logits
  int max_out() const { return max_seqs + max_scored; }
};

// The rows of one sequence in a step, and what is wanted of them.
struct StepPart {
  Sequence* seq = nullptr;
  RowPlan rows;                      // cut: tokens.size() rows
  bool ends = true;                  // these rows end the sequence's plan; else they are a chunk of it
  int score_from = 0, score_to = 0;  // rows whose logits say how likely the next prompt token was
  int sample_from = 0;               // rows from here on choose a token; tokens.size(): none
  int n_choices = 1;                 // answers that each choose one there
  int first_out = 0;                 // the part's first output row in the batch

  int n_rows() const { return int(rows.tokens.size()); }
  int n_scored() const { return score_to - score_from; }
  int n_sampled() const { return n_rows() - sample_from; }
  int n_out() const { return n_scored() + n_sampled() * n_choices; }
};

struct StepPlan {
  std::vector<StepPart> parts;
  std::vector<UnitCopy> copies;  // to be carried out before the step
  int n_tokens = 0, n_out = 0;
  bool prefill = false;               // some part is not a plain decode
  std::vector<Sequence*> impossible;  // alone on the machine, and still without room

  void clear();
  void add(StepPart);
  void remove(const Sequence&);
};

class Scheduler {
 public:
  Scheduler(const SchedulerLimits&, StateManager&, Metrics&, std::vector<int32_t> stop_tokens);

  void add(Sequence&);     // it waits
  void remove(Sequence&);  // at any moment; gives its state back
  bool idle() const { return running_.empty() && waiting_.empty(); }
  void count();  // tells the metrics how many run and wait

  bool schedule(StepPlan&);  // false: nothing to run
  // What the step found out about one of its parts; `step` has a Sampled per output row. Answers that end give their state back.
  void absorb(const StepPart&, std::span<const Sampled> step);

 private:
  struct Order {
    bool operator()(const Sequence* a, const Sequence* b) const { return a->before(*b); }
  };
  int places() const;  // that running sequences take of max_seqs
  bool has_room(const Sequence&) const;
  void run_waiting(StepPlan&);
  void start(Sequence&);
  bool plan_rows(Sequence&, StepPlan&);
  void preempt(Sequence&, StepPlan&);
  void take_scores(const StepPart&, std::span<const Sampled>);
  void emit(Sequence&, std::span<const Sampled>);

  SchedulerLimits limits_;
  StateManager& states_;
  Metrics& metrics_;
  std::vector<int32_t> stop_tokens_;
  std::vector<Sequence*> running_;  // in order
  std::set<Sequence*, Order> waiting_;
};

}  // namespace mr
