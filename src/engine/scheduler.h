// Plans the rows of the next step: iteration-level continuous batching (Orca, 2022) with chunked prefill
// (Sarathi, 2023). Decode rows go first, then chunks of prompts in order, all under one budget of rows. The next step is
// planned while the current one runs: rows are committed when a step is launched, and a token still in flight is a
// placeholder (-1 - its output row) until absorb() fills it in. If the backend is asynchronous, the next step is also launched
// before the last one's results are known: then at most two are in flight.
//
// No starvation. All answers are in one order (Turn), in which a later request of better priority moves ahead of at most
// `overtakes` earlier ones per level. None passes the first that waits; the first of all is never preempted and gets a row
// in every step. So a request ends at the latest when all before it in the order, and those that ran when it became the
// first to wait, have ended: after at most the sum of their prompt and answer tokens, in steps.
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

// Continuous: sequences join and leave at every step. The baselines run one batch to its end, with prompts padded to the
// longest and rows of ended answers still computed: `fixed` ("static") waits for a full batch, `dynamic` for at most batch_delay.
enum class Batching : uint8_t { continuous, dynamic, fixed };
enum class Victim : uint8_t { newest, largest };  // of the lowest priority, when memory runs out

struct SchedulerLimits {
  int max_seqs = 16;           // running at once
  int max_batch_tokens = 512;  // rows of a step
  int max_prompt_tokens = 0;   // prompt rows among them; small values keep decode latency even; 0: no separate limit
  int max_scored = 64;         // output rows of a step that only score prompts: bounds the memory for logits
  Batching batching = Batching::continuous;
  double batch_delay_s = 0.05;
  Victim victim = Victim::newest;
  bool kv_cache = true;      // false: every token recomputes its whole context
  bool shared_state = true;  // false: answers to one prompt each compute it
  int max_out() const { return max_seqs + max_scored; }
};

// The rows of one sequence in a step, and their outputs.
struct StepPart {
  Sequence* seq = nullptr;                    // null: padding for an answer that has ended
  SequenceState* state = nullptr;             // of seq, or left by the ended answer
  RowPlan rows;                               // trimmed to this step: tokens.size() rows
  int padding = 0;                            // padding rows after them
  bool ends = true;                           // these rows end the sequence's plan; else they are a chunk of it
  int position = 0;                           // of the first row
  int score_from = 0, score_to = 0;           // rows whose logits score the next prompt token
  int sample_from = 0;                        // rows from here on sample a token; n_rows(): none
  int n_choices = 1;                          // answers that each sample one there
  bool scores = false, scores_first = false;  // the request wants the prompt's log-probabilities; these are the first
  int first_out = 0;                          // the part's first output row in the batch
  std::vector<Sequence*> followers;           // once launched: the other answers that sampled here

  int n_rows() const { return int(rows.tokens.size()); }
  int n_all() const { return n_rows() + padding; }
  int n_scored() const { return score_to - score_from; }
  int n_sampled() const { return n_rows() - sample_from; }
  int n_out() const { return n_scored() + n_sampled() * n_choices; }
};

struct StepPlan {
  std::vector<StepPart> parts;
  std::vector<UnitCopy> copies;  // to be executed before the step
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

  void add(Answering&);              // queues it; its answers are created when they can run
  void remove(Answering&) noexcept;  // at any time; releases the state of its answers
  void clear() noexcept;             // removes all without releasing their state, which cannot be trusted
  bool idle() const { return running_.empty() && waiting_.empty() && arrived_.empty(); }
  bool holds_back() const { return batch_waits_; }                          // the next batch is not full yet
  Clock::time_point held_until() const;                                     // when it starts even so
  void count();                                                             // updates the metrics: how many run and wait, and why
  float internal_waste() const;                                             // fraction of the tokens in held pages that are not filled
  void each_state(const std::function<void(const SequenceState&)>&) const;  // running, waiting and padding

  // Plans what can be planned now; may be called again to add more, also while a launched step runs. more_may_come: a batch
  // that is not full may wait for others. Calls `fail` for requests that can never run: their state does not fit even alone, or there is
  // no memory for their answers; it must end them.
  void plan(bool more_may_come, FunctionRef<void(Answering&, const char* why)> fail);
  const StepPlan& planned() const { return next_; }
  // Whether some running sequence needs the results in flight before its next rows can be planned.
  bool needs_results() const;
  // Makes the planned step the current one; null: nothing to run. `write` copies its rows and tables, then its rows are
  // committed ahead of their results. The plan stays valid until the launch after the next.
  StepPlan* launch(FunctionRef<void(const StepPlan&)> write);
  // Processes the results of a launched step; `sampled` has an entry per output row. Releases the state of answers that end. Calls
  // `tell` for each sequence with new output (error is null), or with an error, on which the caller must fail it.
  void absorb(StepPlan&, std::span<const Sampled> sampled, FunctionRef<void(Sequence&, const char* error)> tell);

 private:
  struct Order {
    bool operator()(const auto* a, const auto* b) const { return a->turn() < b->turn(); }
  };
  using Failure = std::pair<Answering*, const char*>;
  void remove(Sequence&) noexcept;
  int places(const Sequence&) const;  // of max_seqs that it and its followers take
  int places() const;                 // of max_seqs that all running sequences take
  int budget(bool prompt) const;
  void plan_ragged();
  void plan_padded();
  void run_waiting(bool more_may_come);
  bool batch_is_ready(bool more_may_come);
  void admit();
  Waits blocked(int n_places) const;  // before an answer is created
  Sequence* first_waiting();          // creates it if necessary; null: it cannot be created yet
  void end_padding() noexcept;        // when its memory is needed, and at the end of a batch
  Waits blocked(const Sequence&) const;
  bool make_way(const Answering&, const Turn&);
  bool start(Sequence&);
  bool plan_rows(Sequence&, int padding = 0);
  void plan_padding(SequenceState&, Sequence*, int padding);
  Sequence* choose_victim() const;  // null: only the first runs
  void preempt(Sequence&);
  void leave(Sequence&);  // an ended answer

  void commit_ahead(StepPart&);
  void absorb(StepPart&, std::span<const Sampled>);
  void forget(SequenceState&);  // drops its state, without a KV cache
  void take_scores(const StepPart&, std::span<const Sampled>);
  void emit(Sequence&, std::span<const Sampled>);

  SchedulerLimits limits_;
  StateManager& states_;
  Metrics& metrics_;
  std::vector<int32_t> stop_tokens_;
  std::vector<Sequence*> running_;       // in order
  std::set<Sequence*, Order> waiting_;   // already created: preempted, or short of memory for their tokens
  std::set<Answering*, Order> arrived_;  // requests with answers not yet created
  StepPlan next_, launched_[2];
  int turn_ = 0;                                       // launched_[turn_] is the current step
  std::vector<Failure> failures_;                      // of the current call of plan()
  std::vector<Sequence*> pass_;                        // scratch: copy of running_ for a pass over it
  mutable std::vector<const SequenceState*> growing_;  // scratch of blocked()
  Waits waits_for_ = Waits::none;                      // what the first waiting request lacks

  // Only for static and dynamic batching.
  int longest_ = 0;                    // prefill tokens of the batch's longest member
  std::deque<SequenceState> padding_;  // states of ended members; a deque, because parts point to them
  bool batch_waits_ = false;
};

}  // namespace mr
