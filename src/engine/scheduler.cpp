#include "engine/scheduler.h"

#include <algorithm>
#include <limits>

#include "core/error.h"

namespace mr {

void StepPlan::clear() {
  parts.clear();
  copies.clear();
  impossible.clear();
  n_tokens = n_out = 0;
  prefill = false;
}

void StepPlan::add(StepPart part) {
  n_tokens += part.n_rows();
  n_out += part.n_out();
  parts.push_back(part);
}

// Copies that its units were to get stay: they are carried out in order, so whoever takes such a unit next overwrites them.
void StepPlan::remove(const Sequence& seq) {
  auto part = std::ranges::find(parts, &seq, &StepPart::seq);
  if (part == parts.end()) return;
  n_tokens -= part->n_rows();
  n_out -= part->n_out();
  parts.erase(part);
}

static bool decodes(const Sequence& s) { return int(s.state.tokens.size()) - s.state.committed <= s.decoding->max_rows(); }

Scheduler::Scheduler(const SchedulerLimits& limits, StateManager& states, Metrics& metrics, std::vector<int32_t> stop_tokens)
    : limits_(limits), states_(states), metrics_(metrics), stop_tokens_(std::move(stop_tokens)) {}

void Scheduler::add(Sequence& seq) { waiting_.insert(&seq); }

void Scheduler::remove(Sequence& seq) {
  waiting_.erase(&seq);
  if (std::erase(running_, &seq)) states_.release(seq.state);
}

bool Scheduler::schedule(StepPlan& plan) {
  plan.clear();
  // A sequence that loses its state leaves the end of running_, so an index stays valid or falls off the end.
  for (bool decode : {true, false})
    for (size_t i = 0; i < running_.size(); i++)
      if (decodes(*running_[i]) == decode) plan_rows(*running_[i], plan);
  run_waiting(plan);

  int first_out = 0;
  for (StepPart& part : plan.parts) {
    part.first_out = first_out;
    first_out += part.n_out();
    plan.prefill |= part.n_rows() > 1;
  }
  count();
  return !plan.parts.empty();
}

void Scheduler::count() {
  metrics_.running = int(running_.size());
  metrics_.waiting = int(waiting_.size());
}

void Scheduler::run_waiting(StepPlan& plan) {
  while (!waiting_.empty() && plan.n_tokens < limits_.max_batch_tokens) {
    Sequence& seq = **waiting_.begin();
    if (places() + 1 + int(seq.followers.size()) > limits_.max_seqs) return;
    if (!running_.empty() && !has_room(seq)) return;
    start(seq);
    if (!plan_rows(seq, plan)) return;
  }
}

int Scheduler::places() const {
  int n = 0;
  for (const Sequence* seq : running_) n += 1 + int(seq->followers.size());
  return n;
}

// Whether all its tokens and a little more would fit now: who starts with less is soon preempted again.
bool Scheduler::has_room(const Sequence& seq) const {
  StateStats stats = states_.stats();
  int page = states_.page_tokens(), pages = int(seq.state.tokens.size()) / page + 1;
  for (size_t g = 0; g < stats.group.size(); g++) {
    const MemoryPlan::GroupPlan& group = states_.groups()[g];
    int needed = 1;
    if (group.paged()) needed = group.window ? std::min(pages, (group.window + limits_.max_batch_tokens) / page + 2) : pages;
    if (stats.group[g].n_free + stats.group[g].n_cached < needed) return false;
  }
  return true;
}

void Scheduler::start(Sequence& seq) {
  waiting_.erase(&seq);
  running_.insert(std::ranges::upper_bound(running_, &seq, Order{}), &seq);
  seq.state.reuse = !seq.scoring();
  int n_hit = states_.attach(seq.state);
  metrics_.prefix_hit_tokens += n_hit;
  if (!seq.request.started) {
    seq.request.started = Clock::now();
    seq.request.n_cached = n_hit;
  }
}

// Gives the sequence as many rows as the budget leaves. False: it lost its place.
bool Scheduler::plan_rows(Sequence& seq, StepPlan& plan) {
  SequenceState& state = seq.state;
  StepPart part{.seq = &seq, .rows = seq.decoding->plan(state), .n_choices = 1 + int(seq.followers.size())};
  int n_all = part.n_rows(), n = std::min(n_all, limits_.max_batch_tokens - plan.n_tokens);
  if (seq.scoring()) {
    int n_scored_rows = 0;  // of other parts in this step
    for (const StepPart& other : plan.parts) n_scored_rows += other.n_scored();
    part.score_from = std::min(std::max(0, seq.n_scored - state.committed), n);
    n = std::min(n, part.score_from + limits_.max_scored - n_scored_rows);
    part.score_to = std::clamp(state.n_prompt - 1 - state.committed, part.score_from, n);
  }
  if (n <= 0 || (part.rows.atomic && n < n_all)) return true;  // not in this step

  part.ends = n == n_all;
  part.sample_from = part.ends ? part.rows.wants_logits_from : n;
  part.rows.tokens = part.rows.tokens.first(size_t(n));
  state.publish = part.rows.publish;
  while (!states_.reserve(state, n, 0, plan.copies)) {
    Sequence& last = *running_.back();
    preempt(last, plan);
    if (&last != &seq) continue;
    if (running_.empty()) plan.impossible.push_back(&seq);
    return false;
  }
  plan.add(part);
  return true;
}

// Its tokens are computed again when its turn comes, as far as the prefix tree does not still hold them.
void Scheduler::preempt(Sequence& seq, StepPlan& plan) {
  plan.remove(seq);
  remove(seq);
  waiting_.insert(&seq);
  metrics_.preemptions++;
}

void Scheduler::absorb(const StepPart& part, std::span<const Sampled> step) {
  Sequence& seq = *part.seq;
  std::span<const Sampled> outputs = step.subspan(size_t(part.first_out), size_t(part.n_out()));
  for (const Sampled& s : outputs)
    check(s.token >= 0, "the model gave no finite logits after token {} of the sequence", seq.state.committed + part.n_rows());
  if (seq.scoring()) take_scores(part, outputs.first(size_t(part.n_scored())));
  if (!part.ends) return states_.commit(seq.state, part.n_rows());

  auto sampled_by = [&](int i) { return outputs.subspan(size_t(part.n_scored() + i * part.n_sampled()), size_t(part.n_sampled())); };
  Absorbed result = seq.decoding->absorb(seq.state, part.n_rows(), sampled_by(0));
  if (result.path.empty())
    states_.commit(seq.state, result.n_rows);
  else
    states_.commit(seq.state, result.path);

  std::vector<Sequence*> followers = std::move(seq.followers);
  seq.followers.clear();
  for (Sequence* f : followers) {
    states_.fork(seq.state, f->state);
    running_.insert(std::ranges::upper_bound(running_, f, Order{}), f);
  }
  emit(seq, result.emit);
  for (size_t i = 0; i < followers.size(); i++)
    emit(*followers[i], followers[i]->decoding->absorb(followers[i]->state, part.n_rows(), sampled_by(int(i) + 1)).emit);
}

void Scheduler::take_scores(const StepPart& part, std::span<const Sampled> scores) {
  Sequence& seq = *part.seq;
  if (seq.n_scored == 0)
    seq.news.prompt.push_back({.token = seq.state.tokens[0], .logprob = std::numeric_limits<float>::quiet_NaN(), .top = {}});
  seq.news.prompt.insert(seq.news.prompt.end(), scores.begin(), scores.end());
  seq.n_scored = std::max(seq.n_scored, seq.state.committed + part.n_rows());
}

void Scheduler::emit(Sequence& seq, std::span<const Sampled> tokens) {
  if (seq.max_tokens == 0) seq.end(Finish::length);
  for (const Sampled& s : tokens) {
    if (seq.finish != Finish::none) break;
    seq.append(s, stop_tokens_);
    metrics_.generated_tokens++;
  }
  if (seq.finish != Finish::none) remove(seq);
}

}  // namespace mr
