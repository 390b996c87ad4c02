#include "bench/grid.h"

#include <algorithm>

#include "analyze/subject.h"
#include "core/config.h"
#include "core/error.h"
#include "core/random.h"
#include "model/arch/arch.h"

namespace mr {

static constexpr double memory_share = 0.8;  // of the machine's memory, for weights and state

std::vector<GridShape> grid_shapes(const std::vector<int>& batches, const std::vector<int>& prefill, const std::vector<int>& decode,
                                   const std::vector<int>& contexts) {
  std::vector<GridShape> shapes;
  for (int context : contexts.empty() ? prefill : contexts)
    for (int batch : batches) shapes.push_back({true, batch, context, 1});
  for (int context : contexts.empty() ? std::vector<int>{1} : contexts)
    for (int tokens : decode)
      for (int batch : batches) shapes.push_back({false, batch, context, tokens});
  return shapes;
}

// The most tokens of one sequence. Prompts end in different steps: early ones decode until the last prompt is done.
static int64_t longest(const GridShape& s, const SchedulerLimits& limits) {
  if (s.prefill) return s.context + 1;
  if (s.batch == 1) return s.context + s.tokens + 1;
  int rows = limits.max_batch_tokens - s.batch;  // for prompts, besides the decoding sequences
  if (limits.max_prompt_tokens) rows = std::min(rows, limits.max_prompt_tokens);
  return s.context + s.tokens + int64_t(s.batch) * s.context / std::max(1, rows) + 2;
}

// Tokens of all sequences, in whole pages.
static int64_t all_tokens(const GridShape& s, const SchedulerLimits& limits, int page) {
  return s.batch * ((longest(s, limits) + page - 1) / page + 1) * page;
}

void make_room(EngineSetup& setup, const std::vector<GridShape>& shapes) {
  EngineOptions& o = setup.options;
  int batch = 1;
  for (const GridShape& s : shapes) batch = std::max(batch, s.batch);
  o.max_batch_tokens = std::max(o.max_batch_tokens, 2 * batch);
  auto files = Checkpoint::open(setup.model, o.random_weights ? Checkpoint::Want::configuration : Checkpoint::Want::tensors);
  const ModelSpec spec = describe(*files).spec;
  const StateLayout layout = layout_of(spec, {o.kv_dtype.value_or(DType::f16), o.state_dtype.value_or(spec.scan_state)});
  const double room =
      o.state_bytes ? double(o.state_bytes) : memory_share * double(physical_memory()) - parameter_bytes(spec, storage_of(*files));
  int64_t bytes = 0;
  o.max_seqs = 1;
  const int64_t whole = o.max_context ? o.max_context : spec.max_context;  // contiguous state reserves this for each sequence
  for (const GridShape& s : shapes) {
    const int64_t tokens = o.contiguous ? s.batch * whole : all_tokens(s, limits_of(o), o.page_tokens);
    StateLimits wanted{.page_tokens = o.page_tokens, .max_tokens = tokens, .max_seqs = s.batch};
    wanted.max_rows = o.max_batch_tokens;
    int64_t needed = plan_memory(layout, wanted).bytes();
    if (double(needed) > room) continue;
    // Snapshots may take a quarter: two recurrent states per sequence, so that publishing one never waits.
    const int64_t for_two = 8 * int64_t(s.batch) * layout.bytes_per_sequence();
    bytes = std::max({bytes, needed + needed / 3, std::min(for_two, int64_t(room))});
    o.max_seqs = std::max(o.max_seqs, s.batch);
  }
  if (!o.state_bytes) o.state_bytes = bytes;
}

// Near the model's full context, prompts are shortened to leave room for the answers.
GridShape GridBench::within_context(GridShape s) const {
  const GridShape asked = s;
  if (s.context <= engine_.max_context())
    for (int64_t over = 1; s.context > asked.context / 2 && (over = longest(s, engine_.limits()) - engine_.max_context()) > 0;)
      s.context -= int(over);
  return s.context > asked.context / 2 ? s : asked;
}

std::string GridBench::refuse(const GridShape& s) const {
  const MemoryPlan& plan = engine_.memory_plan();
  const int64_t tokens = longest(s, engine_.limits());
  if (tokens > engine_.max_context()) {
    const std::string rest = s.prefill || s.batch == 1 ? "its answer" : fmt::format("what is decoded until all {} do so at once", s.batch);
    return fmt::format("a prompt of {} tokens and {} are {}, longer than the context of {}", s.context, rest, tokens,
                       engine_.max_context());
  }
  if (s.batch > plan.n_seqs || all_tokens(s, engine_.limits(), plan.page_tokens) > plan.n_tokens)
    return fmt::format("the state of {} sequence{} of {} tokens does not fit: there is memory for {} tokens", s.batch,
                       s.batch == 1 ? "" : "s", tokens, plan.n_tokens);
  return "";
}

std::vector<int64_t> GridBench::submit(const GridShape& s, uint32_t first_prompt, int max_tokens) {
  std::vector<int64_t> ids;
  const int vocab = engine_.model().spec().vocab;
  for (int i = 0; i < s.batch; i++) {
    Request r;
    for (int t = 0; t < s.context; t++) r.prompt.push_back(int32_t(uniform(0, first_prompt + uint32_t(i), uint32_t(t)) * vocab));
    r.sampling.temperature = 0;
    r.sampling.ignore_eos = true;
    r.sampling.max_tokens = max_tokens;
    ids.push_back(engine_.submit(std::move(r), [this](const TokenEvent& e) {
      if (e.finish == Finish::error) error_ = e.error;
    }));
  }
  return ids;
}

void GridBench::drain(const std::vector<int64_t>& ids) {
  for (int64_t id : ids) engine_.cancel(id);
  while (engine_.step()) {
  }
  check(error_.empty(), "{}", error_);
}

Run GridBench::prefill(const GridShape& s) {
  submit(s, next_prompt_, 1);
  next_prompt_ += uint32_t(s.batch);
  log_.clear();
  times_.reset();
  const Clock::time_point begin = Clock::now();
  while (engine_.step()) {
  }
  check(error_.empty() && !log_.empty(), "{}", error_);
  return {std::chrono::duration<double>(log_.back().end - begin).count(), log_};
}

// Without a KV cache a decode step looks like a prefill.
bool GridBench::writes_one_each(const StepWork& step, const GridShape& s) const {
  return int(step.parts.size()) == s.batch && (engine_.limits().kv_cache ? !step.prefill : step.parts.back().outputs == 1);
}

// Only steps in which every sequence decodes one token count. The prompts are the same in every run: their state comes from the
// prefix cache if there is one.
Run GridBench::decode(const GridShape& s) {
  std::vector<int64_t> ids = submit(s, 0, int(longest(s, engine_.limits())) - s.context);
  log_.clear();
  times_.reset();
  Clock::time_point begin = Clock::now();
  for (bool more = true; more && int(log_.size()) < s.tokens;) {
    more = engine_.step();
    if (log_.empty() || writes_one_each(log_.back(), s)) continue;
    begin = log_.back().end;
    log_.clear();
    times_.reset();
  }
  Run run{0, log_};
  if (!log_.empty()) run.seconds = std::chrono::duration<double>(log_.back().end - begin).count();
  drain(ids);
  check(int(run.steps.size()) == s.tokens, "{} sequences did not decode {} tokens at once, only {}", s.batch, s.tokens, run.steps.size());
  return run;
}

void GridBench::take_apart(GridRow& row) {
  times_.reset();
  engine_.observe(&times_);
  const Run run = row.shape.prefill ? prefill(row.shape) : decode(row.shape);
  engine_.observe(nullptr);
  row.apart_s = run.seconds;
  row.times = times_.times();
}

GridRow GridBench::row(const GridShape& asked, const Patience& patience) {
  const GridShape s = within_context(asked);
  GridRow row{s, asked.context, refuse(s)};
  if (!row.error.empty()) return row;
  try {
    const std::string what = fmt::format("{}, batch {}, context {}", s.prefill ? "prefill" : "decode", s.batch, s.context);
    row.m = measure(what, patience, probe_, costs_, [&] { return s.prefill ? prefill(s) : decode(s); });
    if (explain_) take_apart(row);
  } catch (const Error& e) {
    row.error = e.what();
  }
  return row;
}

}  // namespace mr
