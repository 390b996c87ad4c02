#include "engine/memory.h"

#include <algorithm>

#include "core/error.h"
#include "engine/engine.h"

namespace mr {

static constexpr int default_contexts = 4;    // sequences of the longest context that the state holds by default
static constexpr double default_share = 0.4;  // most of the machine's memory for state
static constexpr double own_share = 0.9;      // most of a device's

SchedulerLimits limits_of(const EngineOptions& options) {
  check(options.max_seqs > 0 && options.max_batch_tokens > 0, "max_seqs ({}) and max_batch_tokens ({}) must be at least 1",
        options.max_seqs, options.max_batch_tokens);
  check(options.max_prompt_tokens >= 0, "max_prompt_tokens must be 0 (no limit of its own) or more, not {}", options.max_prompt_tokens);
  SchedulerLimits limits{.max_seqs = std::min(options.max_seqs, options.max_batch_tokens), .max_batch_tokens = options.max_batch_tokens};
  limits.max_prompt_tokens = options.max_prompt_tokens;
  limits.batching = options.batching;
  limits.batch_delay_s = options.batch_delay_s;
  limits.victim = options.victim;
  limits.kv_cache = options.kv_cache;
  limits.shared_state = !options.contiguous;
  return limits;
}

// The requested state; by default a few sequences of the longest context, limited to a share of the remaining memory.
static MemoryPlan plan_state(const StateLayout& layout, const EngineOptions& options, int max_context, const SchedulerLimits& limits,
                             int64_t left, bool own) {
  StateLimits wanted{.page_tokens = options.page_tokens, .bytes = options.state_bytes, .max_seqs = limits.max_seqs};
  wanted.max_rows = limits.max_batch_tokens;
  wanted.contiguous = options.contiguous;
  wanted.host_bytes = options.swap_bytes;
  if (wanted.bytes) return plan_memory(layout, wanted);
  wanted.max_tokens = int64_t(max_context) * (own ? limits.max_seqs : std::min(default_contexts, limits.max_seqs));
  MemoryPlan plan = plan_memory(layout, wanted);
  int64_t most = int64_t(double(std::max<int64_t>(left, 0)) * (own ? own_share : default_share));
  if (plan.bytes() <= most || most == 0) return plan;
  wanted.bytes = most;
  wanted.max_tokens = 0;
  return plan_memory(layout, wanted);
}

StepLimits step_limits(const SchedulerLimits& limits, int max_context, const Backend& backend) {
  const int with_padding = std::min({backend.padded(limits.max_seqs), limits.max_batch_tokens, limits.max_out()});
  return {limits.max_batch_tokens, limits.max_out(), std::max(limits.max_seqs, with_padding), max_context};
}

int64_t EngineMemory::own_bytes() const {
  int64_t bytes = 0;
  for (const OwnMemory& o : own) bytes += o.bytes;
  return bytes;
}

EngineMemory plan_engine(const Model& model, const EngineOptions& options, const Backend& backend, const DeviceMemory& machine) {
  backend.check_runs(model.program());
  SchedulerLimits limits = limits_of(options);
  EngineMemory plan;
  int longest = model.spec().max_context;
  check(options.max_context >= 0, "a context of {} tokens was asked for", options.max_context);
  check(options.max_context <= longest, "a context of {} tokens was asked for, but the model was made for {}", options.max_context,
        longest);
  plan.max_context = options.max_context > 0 ? options.max_context : longest;
  plan.weights = model.weight_bytes();
  plan.workspace = model.program().workspace(limits.max_batch_tokens, limits.max_out());
  plan.own = backend.own_memory(model.program(), step_limits(limits, plan.max_context, backend));
  const int64_t before_state = plan.weights + plan.workspace + plan.own_bytes();
  plan.state = plan_state(model.layout(), options, plan.max_context, limits, machine.bytes - before_state, machine.own);
  check(!options.contiguous || plan.state.n_tokens >= plan.max_context,
        "contiguous state of {} tokens for everyone does not fit into the memory for {}: give more, or a shorter context", plan.max_context,
        plan.state.n_tokens);

  const int64_t swap = machine.own ? 0 : plan.state.host_bytes(), others = before_state + swap, needed = others + plan.state.bytes();
  std::string advice =
      others < machine.bytes ? fmt::format("leave at most {} to the state (--memory)", size_text(machine.bytes - others))
      : plan.weights >= machine.bytes
          ? "the weights alone do not fit: only weights of fewer bits or a smaller model would help"
          : "only fewer rows a step (--max-batch-tokens), fewer sequences (--max-seqs), less --swap or a smaller model would help";
  check(needed <= machine.bytes, "this needs {} (weights {}, state {}, workspace {}, {} for itself {}, swap {}) but the machine has {}: {}",
        size_text(needed), size_text(plan.weights), size_text(plan.state.bytes()), size_text(plan.workspace), backend.name(),
        size_text(plan.own_bytes()), size_text(swap), size_text(machine.bytes), advice);
  return plan;
}

std::string EngineMemory::text() const {
  std::string text = fmt::format("weights: {}\n{}", size_text(weights), state.text());
  if (state.host_bytes()) text += fmt::format("host memory to swap to: {}\n", size_text(state.host_bytes()));
  text += fmt::format("workspace: {}\n", size_text(workspace));
  std::string parts;
  for (const OwnMemory& o : own)
    if (o.bytes) parts += fmt::format("{}{} {}", parts.empty() ? "" : ", ", o.what, size_text(o.bytes));
  if (!parts.empty()) text += fmt::format("scratch: {} ({})\n", size_text(own_bytes()), parts);
  std::string tokens = state.n_tokens == MemoryPlan::unbounded ? "any number of tokens" : fmt::format("{} tokens", state.n_tokens);
  return text +
         fmt::format("together {}: {} in {} sequences at once, {} tokens in one\n", size_text(bytes()), tokens, state.n_seqs, max_context);
}

}  // namespace mr
