#include "engine/runner.h"

#include <algorithm>

#include "core/error.h"
#include "engine/memory.h"

namespace mr {

// A prompt token is scored by greedy sampling with this bias on it: it dominates every logit, so the token is chosen, and
// sampling reports its log-probability under the unchanged logits.
static constexpr float certain = 1e30f;

Runner::Runner(const Model& model, Backend& backend, const StateStore& state, const SchedulerLimits& limits, int max_context)
    : model_(model),
      backend_(backend),
      state_(state.memory()),
      host_(state.host()),
      arena_(backend.allocate(size_t(model.program().workspace(limits.max_batch_tokens, limits.max_out())))),
      max_tokens_(limits.max_batch_tokens),
      max_out_(limits.max_out()) {
  check(model.has_weights(), "this is an outline of the model, without weights to run");
  backend.prepare(model.program(), step_limits(limits, max_context, backend));
}

void Runner::forward() {
  Written& w = written_[turn_];
  observe([&] { backend_.carry_out(copies_, state_, host_); }, copies_.empty() ? "" : "copies");
  observe([&] { batch_ = backend_.upload(view(w.buffer.bytes(), w.tables), state_); }, "upload");
  if (observer_) observer_->begin();
  logits_ = backend_.run(model_.program(), batch_, state_, arena_, observer_);
}

Tensor Runner::logits() {
  host_logits_.resize(size_t(logits_.size()));
  backend_.copy_out(host_logits_.data(), logits_.data, size_t(logits_.bytes()));
  return view(host_logits_.data(), DType::f32, {logits_.shape[0], logits_.shape[1]});
}

void Runner::launch_sample() {
  n_out_.push_back(batch_.n_out);
  if (batch_.n_out > 0) observe([&] { backend_.launch_sample(logits_, batch_); }, "sample");
}

std::span<const Sampled> Runner::collect() {
  const int n = n_out_.front();
  n_out_.pop_front();
  sampled_.clear();
  if (n > 0) backend_.collect(sampled_);
  return sampled_;
}

void Runner::forget() {
  std::vector<Sampled> nobody_reads;
  for (; !n_out_.empty(); n_out_.pop_front()) try {
      if (n_out_.front() > 0) backend_.collect(nobody_reads);
    } catch (const std::exception&) {  // the cause of the failed step may make this fail too
    }
}

// Padding sequences to add to a step of one row each, so that the backend sees few shapes.
int Runner::padding(const StepPlan& plan) const {
  const int n = int(plan.parts.size()), padded = backend_.padded(n);
  return uniform_ && padded <= std::min(max_tokens_, max_out_) ? padded - n : 0;
}

static int n_edits(const StepPart& part) {
  if (!part.seq) return 0;
  int n = part.n_scored();
  if (part.n_sampled() == 0) return n;
  n += part.n_sampled() * int(part.seq->sampling.edits().size());
  for (const Sequence* f : part.seq->followers) n += part.n_sampled() * int(f->sampling.edits().size());
  return n;
}

void Runner::prepare(const StepPlan& plan) {
  copies_ = plan.copies;
  uniform_ = std::ranges::all_of(plan.parts, [](const StepPart& p) { return p.n_all() == 1 && p.n_out() == 1; });
  const int n_parts = int(plan.parts.size()), n_padding = padding(plan);
  StepShape shape{.n_tokens = plan.n_tokens + n_padding, .n_seqs = n_parts + n_padding, .n_out = plan.n_out + n_padding};
  n_units_.assign(state_.group.size(), n_padding);
  for (size_t g = 0; g < n_units_.size(); g++)
    if (state_.group[g].page_tokens == 0) n_units_[g] = -1;
  for (const StepPart& part : plan.parts) {
    shape.n_edits += n_edits(part);
    shape.trees |= part.rows.corner == Corner::bits;
    for (size_t g = 0; g < n_units_.size(); g++)
      if (n_units_[g] >= 0) n_units_[g] += int(part.state->table[g].unit.size());
  }
  shape.n_units = n_units_;

  turn_ ^= 1;
  arrays_ = &written_[turn_].buffer.layout(shape);
  arrays_->row_begin[0] = 0;
  for (StepArrays::Group& g : arrays_->group)
    if (g.begin) g.begin[0] = 0;
  int row = 0, edits = 0;
  for (int i = 0; i < n_parts; i++) {
    const StepPart& part = plan.parts[size_t(i)];
    write_rows(part, i, row);
    write_tables(*part.state, i, row, part.n_all());
    if (part.n_out() > 0) edits = write_outputs(part, row, edits);
    row += part.n_all();
  }
  write_padding(n_parts, n_padding);
}

// Padding rows, whose results are ignored: they see only themselves, and write to unit 0.
void Runner::write_padding(int first, int n) {
  StepArrays& a = *arrays_;
  for (int i = first; i < first + n; i++) {
    a.row_begin[i + 1] = i + 1;
    a.context[i] = a.position[i] = a.token[i] = 0;
    a.prompt_len[i] = 1;
    a.corner[i] = Corner::causal;
    a.out_row[i] = i;
    a.out[i] = Out::logits;
    a.sample[i] = {};
    for (StepArrays::Group& g : a.group) {
      if (g.unit) {
        g.unit[g.begin[i]] = 0;
        g.begin[i + 1] = g.begin[i] + 1;
      } else {
        g.src[i] = 0;
        g.dst[i] = -1;
      }
    }
  }
}

void Runner::write_rows(const StepPart& part, int seq, int first_row) {
  StepArrays& a = *arrays_;
  a.row_begin[seq + 1] = first_row + part.n_all();
  a.context[seq] = part.position;
  a.prompt_len[seq] = part.state->n_prompt;
  a.corner[seq] = part.rows.corner;
  for (int r = 0; r < part.n_all(); r++) {
    a.token[first_row + r] = r < part.n_rows() ? part.rows.tokens[size_t(r)] : 0;  // padding: any token
    a.position[first_row + r] = part.position + r;
  }
}

void Runner::write_tables(const SequenceState& state, int seq, int first_row, int n_rows) {
  for (size_t g = 0; g < state.table.size(); g++) {
    StepArrays::Group& out = arrays_->group[g];
    const SequenceState::Table& table = state.table[g];
    if (out.unit) {
      std::ranges::copy(table.unit, out.unit + out.begin[seq]);
      out.begin[seq + 1] = out.begin[seq] + int(table.unit.size());
    } else {
      out.src[seq] = table.src;
      std::copy_n(table.dst.begin(), n_rows, out.dst + first_row);
    }
  }
}

// Returns the number of edits written so far.
int Runner::write_outputs(const StepPart& part, int first_row, int edits) {
  StepArrays& a = *arrays_;
  const Sequence& seq = *part.seq;
  int i = part.first_out;
  for (int r = part.score_from; r < part.score_to; r++, i++) {
    int next = seq.state.committed + r + 1;
    a.out_row[i] = first_row + r;
    a.out[i] = Out::token;
    a.sample[i] = {.temperature = 0, .top_p = 1, .repetition_penalty = 1, .n_logprobs = seq.request.request.sampling.logprobs};
    a.sample[i].edit_begin = edits;
    a.sample[i].n_edits = 1;
    a.edit[edits++] = {.token = seq.state.tokens[size_t(next)], .n_generated = 0, .seen = 0, .bias = certain};
  }
  for (int r = part.sample_from; r < part.n_rows(); r++)
    for (int c = 0; c < part.n_choices; c++, i++) {
      const SamplingState& sampling = c == 0 ? seq.sampling : seq.followers[size_t(c) - 1]->sampling;
      a.out_row[i] = first_row + r;
      a.out[i] = Out::token;
      a.sample[i] = sampling.row(seq.state.committed + r + 1);
      a.sample[i].edit_begin = edits;
      std::ranges::copy(sampling.edits(), a.edit + edits);
      edits += int(sampling.edits().size());
    }
  return edits;
}

}  // namespace mr
