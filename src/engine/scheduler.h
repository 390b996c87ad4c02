// Who computes what in the next step: iteration-level continuous batching (Orca, 2022) with prompts cut into chunks
// (Sarathi, 2023). Decode rows go first, then chunks of prompts in order, all under one budget of rows. The next step is
// planned while the current one runs: rows are committed when a step is launched, and a token that is still being computed
// is a placeholder (-1 - its output row) until absorb() fills it in. Where the backend queues its work, the next step is launched
// too before the last one's results are known: then at most two are in flight.
//
// Nobody starves. Every answer has its place in one order (Turn), which a later request of better priority
// enters at most `overtakes` places ahead for each level. Nobody passes the first that waits; the first of all is never
// preempted and gets a row in every step. So a request has ended when all before it in the order and those that ran when it
// became the first to wait have: at most the sum of their prompt and answer tokens, in steps.
#pragma once

#include <deque>
#include <functional>
#include <set>
#include <utility>
#include <vector>

#include "core/thread_pool.h"
#include "engine/metrics.h"
#include "engine/sequence.h"
#include "state/state_manager.h"

namespace mr {

// Continuous: rows join and leave at every step. The plain forms run one batch to its end, prompts padded to the longest,
// rows of ended answers computed on: `fixed` ("static") waits for a full batch, `dynamic` for at most batch_delay.
enum class Batching : uint8_t { continuous, dynamic, fixed };
enum class Victim : uint8_t { newest, largest };  // of the lowest priority, when memory runs out

struct SchedulerLimits {
  int max_seqs = 16;           // running at once
  int max_batch_tokens = 512;  // rows of a step
  int max_prompt_tokens = 0;   // rows of prompts among them; small: even steps and a low time per token; 0: no other limit
  int max_scored = 64;         // output rows of a step that only score a prompt: bounds the memory for logits
  Batching batching = Batching::continuous;
  double batch_delay_s = 0.05;
  Victim victim = Victim::newest;
  bool kv_cache = true;      // false: every token computes its whole context anew
  bool shared_state = true;  // false: answers to one prompt compute it each for themselves
  int max_out() const { return max_seqs + max_scored; }
};

// The rows of one sequence in a step, and what is wanted of them.
struct StepPart {
  Sequence* seq = nullptr;                    // null: padding for an answer that has ended
  SequenceState* state = nullptr;             // its own, or what the ended answer left
  RowPlan rows;                               // cut: tokens.size() rows
  int padding = 0;                            // rows behind them that are computed for nothing
  bool ends = true;                           // these rows end the sequence's plan; else they are a chunk of it
  int position = 0;                           // of the first row
  int score_from = 0, score_to = 0;           // rows whose logits say how likely the next prompt token was
  int sample_from = 0;                        // rows from here on choose a token; n_rows(): none
  int n_choices = 1;                          // answers that each choose one there
  bool scores = false, scores_first = false;  // the request wants the prompt's log-probabilities; these are the first
  int first_out = 0;                          // the part's first output row in the batch
  std::vector<Sequence*> followers;           // once launched: the other answers that chose here

  int n_rows() const { return int(rows.tokens.size()); }
  int n_all() const { return n_rows() + padding; }
  int n_scored() const { return score_to - score_from; }
  int n_sampled() const { return n_rows() - sample_from; }
  int n_out() const { return n_scored() + n_sampled() * n_choices; }
};

struct StepPlan {
  std::vector<StepPart> parts;
  std::vector<UnitCopy> copies;  // to be carried out before the step
  int n_tokens = 0, n_prompt_tokens = 0, n_scored = 0, n_out = 0;
  bool prefill = false;  // some part is not a plain decode

  void clear();
  void add(StepPart);
  void remove(const Sequence&);
  void remove_padding();  // of ended answers
};

class Scheduler {
 public:
  Scheduler(const SchedulerLimits&, StateManager&, Metrics&, std::vector<int32_t> stop_tokens);

  void add(Answering&);              // it waits; its answers are made when they can run
  void remove(Answering&) noexcept;  // at any moment; its answers give their state back
  void clear() noexcept;             // everyone; no state can be trusted, and none is given back
  bool idle() const { return running_.empty() && waiting_.empty() && arrived_.empty(); }
  bool holds_back() const { return batch_waits_; }                          // the next batch is not full yet
  Clock::time_point held_until() const;                                     // then it starts as it is
  void count();                                                             // tells the metrics how many run and wait, and why
  float internal_waste() const;                                             // share of the tokens in held pages that are not filled
  void each_state(const std::function<void(const SequenceState&)>&) const;  // of all that run

  // Plans what can be planned now, and more if called again. May be called while a launched step runs. more_may_come: a batch
  // that is not full may wait for others. `fail` hears of requests that can never run: their state does not fit even alone, or there is
  // no memory for their answers; it must end them.
  void plan(bool more_may_come, FunctionRef<void(Answering&, const char* why)> fail);
  const StepPlan& planned() const { return next_; }
  // Some running sequence must know the results in flight before its next rows can be written down.
  bool needs_results() const;
  // The planned step becomes the current one; null: nothing to run. `write` writes its rows and tables down, then its rows are
  // committed ahead of their results. The plan lives until the launch after the next.
  StepPlan* launch(FunctionRef<void(const StepPlan&)> write);
  // What a launched step found out; `sampled` has an entry per output row. Answers that end give their state back. `tell` hears of
  // each sequence that has news (error is null), or why it cannot go on; the caller fails it.
  void absorb(StepPlan&, std::span<const Sampled> sampled, FunctionRef<void(Sequence&, const char* error)> tell);

 private:
  struct Order {
    bool operator()(const auto* a, const auto* b) const { return a->turn() < b->turn(); }
  };
  using Failure = std::pair<Answering*, const char*>;
  void remove(Sequence&) noexcept;
  int places(const Sequence&) const;  // that it and the answers which begin with it take of max_seqs
  int places() const;                 // that all running ones take
  int budget(bool prompt) const;
  void plan_ragged();
  void plan_padded();
  void run_waiting(bool more_may_come);
  bool batch_is_ready(bool more_may_come);
  void admit();
  Waits blocked(int n_places) const;  // before anything of an answer is made
  Sequence* first_waiting();          // made, if it was not; null: it cannot be yet
  void end_padding() noexcept;        // where its memory is needed, and at the end of a batch
  Waits blocked(const Sequence&) const;
  bool make_way(const Answering&, const Turn&);
  bool start(Sequence&);
  bool plan_rows(Sequence&, int padding = 0);
  void plan_padding(SequenceState&, Sequence*, int padding);
  Sequence* choose_victim() const;  // null: nobody but the first runs
  void preempt(Sequence&);
  void leave(Sequence&);  // an ended answer

  void commit_ahead(StepPart&);
  void absorb(StepPart&, std::span<const Sampled>);
  void forget(SequenceState&);  // without a K/V cache
  void take_scores(const StepPart&, std::span<const Sampled>);
  void emit(Sequence&, std::span<const Sampled>);

  SchedulerLimits limits_;
  StateManager& states_;
  Metrics& metrics_;
  std::vector<int32_t> stop_tokens_;
  std::vector<Sequence*> running_;       // in order
  std::set<Sequence*, Order> waiting_;   // made already: they were preempted, or there is no memory for their tokens
  std::set<Answering*, Order> arrived_;  // those that have answers nobody has made
  StepPlan next_, launched_[2];
  int turn_ = 0;                                       // launched_[turn_] is the current step
  std::vector<Failure> failures_;                      // of the plan that is being made
  std::vector<Sequence*> pass_;                        // scratch: running_ as it was when a pass over it began
  mutable std::vector<const SequenceState*> growing_;  // scratch of blocked()
  Waits waits_for_ = Waits::none;                      // what the first that waits lacks

  // The plain forms only.
  int longest_ = 0;                    // tokens to compute before the first decode, of the batch's longest member
  std::deque<SequenceState> padding_;  // states of ended members; a deque, because parts point to them
  bool batch_waits_ = false;
};

}  // namespace mr
