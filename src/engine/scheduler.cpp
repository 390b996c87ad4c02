#include "engine/scheduler.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/error.h"

namespace mr {

void StepPlan::clear() {
  parts.clear();
  copies.clear();
  n_tokens = n_prompt_tokens = n_scored = n_out = 0;
  prefill = false;
}

static bool is_prompt(const StepPart& part) { return part.n_all() > 1; }

void StepPlan::add(StepPart part) {
  n_tokens += part.n_all();
  n_prompt_tokens += is_prompt(part) ? part.n_all() : 0;
  n_scored += part.n_scored();
  n_out += part.n_out();
  if (part.seq) part.seq->planned = true;
  parts.push_back(std::move(part));
}

// Its pending copies stay in the plan: copies are executed in order, so the next owner of such a unit overwrites them.
void StepPlan::remove(const Sequence& seq) {
  auto part = std::ranges::find(parts, &seq, &StepPart::seq);
  if (part == parts.end()) return;
  n_tokens -= part->n_all();
  n_prompt_tokens -= is_prompt(*part) ? part->n_all() : 0;
  n_scored -= part->n_scored();
  n_out -= part->n_out();
  part->seq->planned = false;
  parts.erase(part);
}

void StepPlan::remove_padding() {
  for (const StepPart& part : parts)
    if (!part.seq) n_tokens -= part.n_all();
  std::erase_if(parts, [](const StepPart& part) { return !part.seq; });
}

// Only its last token is still to be computed.
static bool decodes(const Sequence& s) { return int(s.state.tokens.size()) - s.state.committed <= s.decoding->max_rows(); }

// A token in flight is its last, or determines its next rows.
static bool must_wait(const Sequence& s) {
  return s.in_flight > 0 && (s.decoding->needs_result() || s.news.timing.n_generated + s.in_flight >= s.max_tokens);
}

Scheduler::Scheduler(const SchedulerLimits& limits, StateManager& states, Metrics& metrics, std::vector<int32_t> stop_tokens)
    : limits_(limits), states_(states), metrics_(metrics), stop_tokens_(std::move(stop_tokens)) {
  if (limits_.max_prompt_tokens == 0) limits_.max_prompt_tokens = limits_.max_batch_tokens;
  failures_.reserve(size_t(limits_.max_seqs) + 1);
}

void Scheduler::add(Answering& request) { arrived_.insert(&request); }

void Scheduler::remove(Answering& request) noexcept {
  arrived_.erase(&request);
  for (auto& answer : request.answers) remove(*answer);
}

void Scheduler::remove(Sequence& seq) noexcept {
  next_.remove(seq);
  waiting_.erase(&seq);
  std::erase(running_, &seq);
  states_.release(seq.state);
  if (running_.empty()) end_padding();
}

void Scheduler::clear() noexcept {
  arrived_.clear();
  waiting_.clear();
  running_.clear();
  padding_.clear();
  failures_.clear();
  next_.clear();
}

void Scheduler::end_padding() noexcept {
  next_.remove_padding();
  for (SequenceState& state : padding_) states_.release(state);
  padding_.clear();
}

void Scheduler::each_state(const std::function<void(const SequenceState&)>& f) const {
  for (const Sequence* seq : running_) f(seq->state);
  for (const Sequence* seq : waiting_) f(seq->state);
  for (const SequenceState& state : padding_) f(state);
}

void Scheduler::count() {
  int waiting = 0;
  for (const Sequence* seq : waiting_) waiting += places(*seq);
  for (const Answering* request : arrived_) waiting += request->unmade();
  metrics_.running = places();
  metrics_.waiting = waiting;
  metrics_.waits_for = waiting ? waits_for_ : Waits::none;
}

// Over the groups that keep all tokens: windows release their pages.
float Scheduler::internal_waste() const {
  int64_t held = 0, filled = 0;
  for (const Sequence* seq : running_)
    for (size_t g = 0; g < seq->state.table.size(); g++) {
      int64_t pages = int64_t(seq->state.table[g].unit.size());
      if (pages == 0 || states_.groups()[g].window > 0) continue;
      held += pages * states_.page_tokens();
      filled += seq->state.committed;
    }
  return held ? 1 - float(filled) / float(held) : 0;
}

// Rows left in the step.
int Scheduler::budget(bool prompt) const {
  int n = limits_.max_batch_tokens - next_.n_tokens;
  return prompt ? std::min(n, limits_.max_prompt_tokens - next_.n_prompt_tokens) : n;
}

void Scheduler::plan(bool more_may_come, FunctionRef<void(Answering&, const char*)> fail) {
  failures_.clear();
  if (limits_.batching == Batching::continuous)
    plan_ragged();
  else
    plan_padded();
  run_waiting(more_may_come);
  for (auto [request, why] : failures_) fail(*request, why);
}

void Scheduler::plan_ragged() {
  pass_ = running_;
  for (bool decode : {true, false})
    for (Sequence* seq : pass_)
      if (seq->state.attached() && !seq->planned && decodes(*seq) == decode) plan_rows(*seq);
}

// First every member's prompt, padded to the longest; then one row of every member, including ended ones.
void Scheduler::plan_padded() {
  pass_ = running_;
  auto rows_left = [&](const Sequence& s) { return std::max(0, s.prefill_end - s.state.committed); };
  auto padding_left = [&](const Sequence& s) { return longest_ - s.prefill_end - s.n_padded; };
  bool prompts = std::ranges::any_of(pass_, [&](Sequence* s) { return rows_left(*s) + padding_left(*s) > 0; }) ||
                 std::ranges::any_of(next_.parts, [](const StepPart& part) { return part.seq && part.padding > 0; });
  for (Sequence* seq : pass_) {
    if (!seq->state.attached() || seq->planned) continue;
    int padding = prompts ? std::clamp(budget(true) - rows_left(*seq), 0, padding_left(*seq)) : 0;
    if (!prompts || rows_left(*seq) > 0)
      plan_rows(*seq, padding);
    else if (padding > 0)
      plan_padding(seq->state, seq, padding);
  }
  for (SequenceState& state : padding_)
    if (!prompts && budget(false) > 0 && std::ranges::find(next_.parts, &state, &StepPart::state) == next_.parts.end())
      plan_padding(state, nullptr, 1);
}

void Scheduler::run_waiting(bool more_may_come) {
  waits_for_ = Waits::none;
  batch_waits_ = false;
  if (waiting_.empty() && arrived_.empty()) return;
  if (limits_.batching != Batching::continuous && !batch_is_ready(more_may_come)) {
    waits_for_ = Waits::batch;
    return;
  }
  admit();
  if (limits_.batching != Batching::continuous) plan_padded();
}

void Scheduler::admit() {
  while (!waiting_.empty() || !arrived_.empty()) {
    Sequence* seq = first_waiting();
    if (!seq) return;
    if (seq->in_flight) return;  // preempted with a token in flight: it restarts when that is known
    waits_for_ = blocked(*seq);
    if (waits_for_ != Waits::none) {
      if (waits_for_ == Waits::tokens || !make_way(seq->request, seq->turn())) return;
      continue;
    }
    if (!start(*seq)) return;
    if (limits_.batching == Batching::continuous && !plan_rows(*seq)) return;
  }
}

// Creates an answer when max_seqs has room for it and its followers, and the step has rows for its prompt; start() creates the followers.
Sequence* Scheduler::first_waiting() {
  Answering* request = arrived_.empty() ? nullptr : *arrived_.begin();
  if (!request || (!waiting_.empty() && (*waiting_.begin())->turn() < request->turn())) return *waiting_.begin();
  while ((waits_for_ = blocked(limits_.shared_state ? request->unmade() : 1)) != Waits::none)
    if (waits_for_ == Waits::tokens || !make_way(*request, request->turn())) return nullptr;
  try {
    Sequence& seq = request->make_answer();
    seq.state.tokens = request->request.prompt;
    waiting_.insert(&seq);
    if (limits_.shared_state || request->unmade() == 0) arrived_.erase(request);
    return &seq;
  } catch (const std::bad_alloc& e) {
    failures_.emplace_back(request, reason_of(e));
    return nullptr;
  }
}

Waits Scheduler::blocked(int n_places) const {
  if (limits_.batching == Batching::continuous && budget(true) <= 0) return Waits::tokens;
  return places() + n_places > limits_.max_seqs ? Waits::sequences : Waits::none;
}

Waits Scheduler::blocked(const Sequence& seq) const {
  if (Waits waits = blocked(places(seq)); waits != Waits::none) return waits;
  // A sequence that starts without memory for all its tokens, in addition to what the others still need, is soon preempted again.
  growing_.assign({&seq.state});
  for (const Sequence* other : running_) growing_.push_back(&other->state);
  if (!running_.empty() && !states_.has_room(growing_, limits_.max_batch_tokens)) return Waits::memory;
  return Waits::none;
}

// Preempts the last running sequence in favour of a request of better priority.
bool Scheduler::make_way(const Answering& request, const Turn& turn) {
  if (running_.empty()) return false;
  Sequence& last = *running_.back();
  if (last.request.request.priority <= request.request.priority || last.turn() <= turn) return false;
  preempt(last);
  return true;
}

int Scheduler::places(const Sequence& seq) const {
  return 1 + int(seq.followers.size()) + (limits_.shared_state ? seq.request.unmade() : 0);
}

int Scheduler::places() const {
  int n = 0;
  for (const Sequence* seq : running_) n += places(*seq);
  return n;
}

// A batch starts when the last one has ended and it is full, or no more requests can join it.
bool Scheduler::batch_is_ready(bool more_may_come) {
  if (!running_.empty()) return false;
  longest_ = 0;
  int wanted = 0;
  for (const Sequence* seq : waiting_) wanted += places(*seq);
  for (const Answering* request : arrived_) wanted += request->unmade();
  bool waited = limits_.batching == Batching::dynamic && Clock::now() >= held_until();
  batch_waits_ = more_may_come && wanted < limits_.max_seqs && !waited;
  return !batch_waits_;
}

Clock::time_point Scheduler::held_until() const {
  if (limits_.batching != Batching::dynamic || (waiting_.empty() && arrived_.empty())) return Clock::time_point::max();
  Clock::time_point first = Clock::time_point::max();
  for (const Sequence* seq : waiting_) first = std::min(first, seq->request.submitted);
  for (const Answering* request : arrived_) first = std::min(first, request->submitted);
  return first + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(limits_.batch_delay_s));
}

// False: there is no room yet to swap its state in, or no memory for its followers.
bool Scheduler::start(Sequence& seq) {
  try {
    while (limits_.shared_state && seq.request.unmade() > 0) seq.followers.push_back(&seq.request.make_answer());
  } catch (const std::bad_alloc& e) {
    failures_.emplace_back(&seq.request, reason_of(e));
    return false;
  }
  int n_hit = 0;
  if (seq.state.swapped()) {
    if (!states_.swap_in(seq.state, next_.copies)) return false;
  } else {
    seq.state.reuse = !seq.scoring();
    n_hit = states_.attach(seq.state);
    metrics_.prefix_hit_tokens += n_hit;
  }
  waiting_.erase(&seq);
  running_.insert(std::ranges::upper_bound(running_, &seq, Order{}), &seq);
  seq.prefill_end = int(seq.state.tokens.size());
  seq.n_padded = 0;
  longest_ = std::max(longest_, seq.prefill_end);
  if (!seq.request.started) {
    seq.request.started = Clock::now();
    seq.request.n_cached = n_hit;
  }
  return true;
}

// Plans as many rows of the sequence as the budget allows, and padding after the last one. False: it was preempted or failed.
bool Scheduler::plan_rows(Sequence& seq, int padding) {
  if (must_wait(seq)) return true;
  SequenceState& state = seq.state;
  StepPart part{.seq = &seq, .state = &state, .rows = seq.decoding->plan(state), .position = state.committed};
  part.n_choices = 1 + int(seq.followers.size());
  part.scores = seq.scoring();
  int n_all = part.n_rows(), n = std::min(n_all, budget(!decodes(seq)));
  if (part.scores) {
    part.score_from = std::clamp(seq.n_scored - state.committed, 0, std::max(0, n));
    n = std::min(n, part.score_from + limits_.max_scored - next_.n_scored);
    part.score_to = std::clamp(state.n_prompt - 1 - state.committed, part.score_from, std::max(n, part.score_from));
  }
  if (n <= 0 || (part.rows.atomic && n < n_all)) return true;  // not in this step

  part.ends = n == n_all;
  part.padding = part.ends ? padding : 0;
  part.sample_from = part.ends ? part.rows.wants_logits_from : n;
  part.rows.tokens = part.rows.tokens.first(size_t(n));
  state.publish = part.rows.publish && limits_.kv_cache;
  while (!states_.reserve(state, n, 0, next_.copies, part.padding)) {
    if (!padding_.empty()) {
      end_padding();
      continue;
    }
    Sequence* victim = choose_victim();
    if (!victim) {
      failures_.emplace_back(&seq.request, "the state of this sequence does not fit into the memory for it, even alone");
      return false;
    }
    preempt(*victim);
    if (victim == &seq) return false;
  }
  seq.n_padded += part.padding;
  next_.add(std::move(part));
  return true;
}

// Rows that are computed and discarded. Left out if there is no memory for them.
void Scheduler::plan_padding(SequenceState& state, Sequence* seq, int padding) {
  if (seq) seq->n_padded += padding;
  if (!states_.reserve(state, 0, 0, next_.copies, padding)) return;
  next_.add({.seq = seq, .state = &state, .padding = padding, .ends = false, .position = state.committed});
}

Sequence* Scheduler::choose_victim() const {
  if (running_.size() < 2) return nullptr;
  if (limits_.victim == Victim::newest) return running_.back();
  auto priority = [](const Sequence* s) { return s->request.request.priority; };
  int lowest = priority(*std::ranges::max_element(running_, {}, priority));
  Sequence* victim = nullptr;
  for (size_t i = 1; i < running_.size(); i++)  // never the first, which guarantees progress
    if (priority(running_[i]) == lowest && (!victim || running_[i]->state.committed >= victim->state.committed)) victim = running_[i];
  return victim ? victim : running_.back();
}

// The sequence waits again: its state is swapped out if there is room, else it recomputes its tokens, except those that the prefix
// tree still holds.
void Scheduler::preempt(Sequence& seq) {
  next_.remove(seq);
  std::erase(running_, &seq);
  if (!states_.swap_out(seq.state, next_.copies)) states_.release(seq.state);
  waiting_.insert(&seq);
  metrics_.preemptions++;
}

bool Scheduler::needs_results() const {
  return std::ranges::any_of(running_, [](const Sequence* s) { return s->in_flight > 0 && s->needs_results(); });
}

StepPlan* Scheduler::launch(FunctionRef<void(const StepPlan&)> write) {
  if (next_.parts.empty()) return nullptr;
  int first_out = 0;
  for (StepPart& part : next_.parts) {
    part.first_out = first_out;
    first_out += part.n_out();
    next_.prefill |= is_prompt(part);
  }
  turn_ ^= 1;
  launched_[turn_].clear();
  StepPlan& current = launched_[turn_];
  std::swap(current, next_);
  write(current);
  for (StepPart& part : current.parts)
    if (part.seq) commit_ahead(part);
  return &current;
}

void Scheduler::commit_ahead(StepPart& part) {
  Sequence& seq = *part.seq;
  seq.planned = false;
  part.scores_first = part.scores && seq.n_scored == 0;
  if (part.scores) seq.n_scored = std::max(seq.n_scored, part.position + part.n_rows());
  if (part.n_rows() == 0) return;
  if (!part.ends) return states_.commit(seq.state, part.n_rows());
  seq.in_flight++;
  if (seq.decoding->needs_result()) return;
  states_.commit(seq.state, part.n_rows());
  int32_t output = part.first_out + part.n_out() - part.n_choices;  // of the last row's first answer
  part.followers = std::exchange(seq.followers, {});
  for (Sequence*& f : part.followers) {
    states_.fork(seq.state, f->state);
    f->in_flight++;
    f->state.tokens.push_back(-1 - (output + 1 + int32_t(&f - part.followers.data())));
    f->prefill_end = seq.prefill_end;
    f->n_padded = longest_ - seq.prefill_end;  // padded together with seq's prompt
    running_.insert(std::ranges::upper_bound(running_, f, Order{}), f);
  }
  seq.state.tokens.push_back(-1 - output);
  if (limits_.kv_cache) return;
  forget(seq.state);
  for (Sequence* f : part.followers) forget(f->state);
}

void Scheduler::forget(SequenceState& state) {
  states_.release(state);
  states_.attach(state);
}

void Scheduler::absorb(StepPlan& step, std::span<const Sampled> sampled, FunctionRef<void(Sequence&, const char*)> tell) {
  for (StepPart& part : step.parts) {
    if (!part.seq || part.seq->finish != Finish::none) continue;  // padding; or cancelled or failed meanwhile
    try {
      absorb(part, sampled);
      tell(*part.seq, nullptr);
    } catch (const std::exception& e) {
      tell(*part.seq, reason_of(e));
    }
  }
}

void Scheduler::absorb(StepPart& part, std::span<const Sampled> step) {
  Sequence& seq = *part.seq;
  std::span<const Sampled> outputs = step.subspan(size_t(part.first_out), size_t(part.n_out()));
  for (const Sampled& s : outputs)
    check(s.token >= 0, "the model gave no finite logits after token {} of the sequence", part.position + part.n_rows());
  if (part.scores) take_scores(part, outputs.first(size_t(part.n_scored())));
  if (!part.ends) return;

  auto sampled_by = [&](int i) { return outputs.subspan(size_t(part.n_scored() + i * part.n_sampled()), size_t(part.n_sampled())); };
  Absorbed result = seq.decoding->absorb(seq.state, part.n_rows(), sampled_by(0));
  if (seq.decoding->needs_result() && result.path.empty()) states_.commit(seq.state, result.n_rows);
  if (seq.decoding->needs_result() && !result.path.empty()) states_.commit(seq.state, result.path);
  emit(seq, result.emit);
  for (size_t i = 0; i < part.followers.size(); i++) {
    Sequence& f = *part.followers[i];
    if (f.finish == Finish::none) emit(f, f.decoding->absorb(f.state, part.n_rows(), sampled_by(int(i) + 1)).emit);
  }
}

// The first token of a prompt has no prediction: its score is NaN.
void Scheduler::take_scores(const StepPart& part, std::span<const Sampled> scores) {
  Sequence& seq = *part.seq;
  if (part.scores_first)
    seq.news.prompt.push_back({.token = seq.state.tokens[0], .logprob = std::numeric_limits<float>::quiet_NaN(), .top = {}});
  seq.news.prompt.insert(seq.news.prompt.end(), scores.begin(), scores.end());
}

void Scheduler::emit(Sequence& seq, std::span<const Sampled> tokens) {
  seq.in_flight--;
  if (seq.max_tokens == 0) seq.end(Finish::length);
  for (const Sampled& s : tokens) {
    if (seq.finish != Finish::none) break;
    seq.append(s, stop_tokens_);
    metrics_.generated_tokens++;
  }
  if (seq.finish != Finish::none) leave(seq);
}

// With static batching its row of the batch stays occupied.
void Scheduler::leave(Sequence& seq) {
  if (limits_.batching != Batching::continuous && seq.state.attached()) {
    next_.remove(seq);
    padding_.push_back(std::move(seq.state));
    seq.state = {};
  }
  remove(seq);
}

}  // namespace mr
