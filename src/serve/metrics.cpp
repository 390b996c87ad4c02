#include "serve/metrics.h"

#include <fmt/format.h>

#include <algorithm>

namespace mr {

void Histogram::observe(double x) {
  counts_[size_t(std::ranges::lower_bound(bounds_, x) - bounds_.begin())]++;
  sum_ += x;
}

static void describe(std::string& out, const char* name, const char* type, const char* help) {
  out += fmt::format("# HELP millrace_{} {}\n# TYPE millrace_{} {}\n", name, help, name, type);
}

void Histogram::write(std::string& out, const char* name, const char* help) const {
  describe(out, name, "histogram", help);
  int64_t n = 0;
  for (size_t i = 0; i < bounds_.size(); i++) out += fmt::format("millrace_{}_bucket{{le=\"{}\"}} {}\n", name, bounds_[i], n += counts_[i]);
  n += counts_.back();
  out += fmt::format("millrace_{}_bucket{{le=\"+Inf\"}} {}\nmillrace_{}_sum {}\nmillrace_{}_count {}\n", name, n, name, sum_, name, n);
}

static const std::vector<double> phase_bounds = {.01, .05, .1, .3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240};
static const std::vector<double> length_bounds = {1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000};

ServeMetrics::ServeMetrics()
    : ttft_({.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80}),
      tpot_({.001, .0025, .005, .01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5}),
      e2e_(phase_bounds),
      queue_(phase_bounds),
      prefill_(phase_bounds),
      decode_(phase_bounds),
      prompt_(length_bounds),
      generated_(length_bounds) {}

void ServeMetrics::count(int64_t& n) {
  std::lock_guard lock(mutex_);
  n++;
}

void ServeMetrics::responded(int status) { count(responses_[size_t(std::clamp(status / 100, 0, 5))]); }

void ServeMetrics::answered(const TokenEvent& last, double seconds) {
  std::lock_guard lock(mutex_);
  finished_[size_t(last.finish)]++;
  if (last.finish != Finish::stop && last.finish != Finish::length) return;
  const Timing& t = last.timing;
  e2e_.observe(seconds);
  prompt_.observe(t.n_prompt);
  generated_.observe(t.n_generated);
  queue_.observe(t.started_s);
  if (t.n_generated > 0) ttft_.observe(t.first_token_s);
  if (t.n_generated > 0) prefill_.observe(t.first_token_s - t.started_s);
  if (t.n_generated > 0) decode_.observe(t.last_token_s - t.first_token_s);
  if (t.n_generated > 1) tpot_.observe((t.last_token_s - t.first_token_s) / (t.n_generated - 1));
}

// One sample for each reason; they add up to all waiting requests. All wait for what the first one lacks; those that arrived since the
// last step was planned wait for rows in the next.
static void write_waiting(std::string& out, const Stats& s) {
  const Waits lacking = s.waits_for == Waits::none ? Waits::tokens : s.waits_for;
  describe(out, "num_requests_waiting", "gauge", "Requests that wait, by what the first of them lacks.");
  for (auto [waits, reason] :
       {std::pair(Waits::memory, "memory"), {Waits::sequences, "sequences"}, {Waits::tokens, "tokens"}, {Waits::batch, "batch"}})
    out += fmt::format("millrace_num_requests_waiting{{reason=\"{}\"}} {}\n", reason, waits == lacking ? s.waiting : 0);
}

static void write_groups(std::string& out, const MemoryPlan& plan) {
  describe(out, "state_units", "gauge", "Units of state (pages or slots) that sequences may hold, by group.");
  for (size_t i = 0; i < plan.group.size(); i++) {
    const MemoryPlan::GroupPlan& g = plan.group[i];
    out += fmt::format("millrace_state_units{{group=\"{}\",kind=\"{}\",window=\"{}\"}} {}\n", i, g.paged() ? "paged" : "slot", g.window,
                       g.n_units - 1);
  }
}

std::string ServeMetrics::text(const Stats& s, const MemoryPlan& plan, const QueueStats& queue, const HttpStats& http,
                               const LimitStats* limits) const {
  std::string out;
  auto one = [&](const char* name, const char* type, const char* help, auto value) {
    describe(out, name, type, help);
    out += fmt::format("millrace_{} {}\n", name, value);
  };
  one("num_requests_running", "gauge", "Sequences that are computed.", s.running);
  write_waiting(out, s);
  one("num_requests_queued", "gauge", "Answers without a first token.", queue.n_answers);
  one("num_tokens_waiting", "gauge", "Prompt tokens of answers without a first token.", queue.n_tokens);
  one("requests_total", "counter", "Requests that the engine took; a list of prompts is one for each.", s.requests);
  one("requests_finished_total", "counter", "Those of them that have ended, whatever the reason.", s.finished);
  one("kv_cache_usage_ratio", "gauge", "The share of the state's units that sequences hold, in the fullest group.", s.state_usage);
  write_groups(out, plan);
  one("state_internal_waste_ratio", "gauge", "The share of the pages' tokens that sequences hold and have not filled.", s.internal_waste);
  one("state_external_waste_ratio", "gauge", "The share of the pages in holes too short for a contiguous sequence.", s.external_waste);
  one("swapped_units_total", "counter", "Units of state that were moved to host memory.", s.swapped_units);
  one("prefix_cache_queries_total", "counter", "Prompt tokens that were looked up in the prefix cache.", s.prompt_tokens);
  one("prefix_cache_hits_total", "counter", "Prompt tokens that were found there.", s.prefix_hit_tokens);
  one("prompt_tokens_total", "counter", "Prompt tokens that were taken.", s.prompt_tokens);
  one("generation_tokens_total", "counter", "Tokens that were generated.", s.generated_tokens);
  one("computed_tokens_total", "counter", "Rows that went through the model.", s.computed_tokens);
  one("num_preemptions_total", "counter", "Sequences that lost their state for want of memory.", s.preemptions);
  one("engine_steps_total", "counter", "Steps of the engine.", s.steps);
  one("engine_prefill_seconds_total", "counter", "Time in steps with any row of a prompt.", s.prefill_s);
  one("engine_decode_seconds_total", "counter", "Time in all other steps.", s.decode_s);
  one("engine_step_age_seconds", "gauge", "Time since the engine last moved while there was work; 0: it is idle.", queue.step_age_s);
  one("http_connections", "gauge", "Connections that are open.", http.n_connections);
  one("http_connections_cut_total", "counter", "Connections that had to make room for others.", http.n_cut);
  one("http_connections_failed_total", "counter", "Connections that ended with an exception.", http.n_failed);
  one("http_longest_turn_seconds", "gauge", "The most processor time for which a connection has held a thread that moves bytes.",
      http.longest_turn_s);
  one("http_memory_bytes", "gauge", "Bytes that connections hold for bodies, requests and answers.", http.memory);
  one("http_memory_peak_bytes", "gauge", "The most that they have held.", http.memory_peak);
  one("http_memory_limit_bytes", "gauge", "What they may hold, besides the fixed sum of each connection.", http.memory_limit);
  if (limits) {
    one("engine_bytes_total", "counter", "Bytes of weights and state that the steps had to move, by the analysis.", limits->bytes);
    one("engine_flops_total", "counter", "Flops that the steps had to compute, by the analysis.", limits->flops);
    one("memory_limit_bytes_per_second", "gauge", "The memory's speed, measured once, before the first request.", limits->bytes_per_s);
    one("compute_limit_flops_per_second", "gauge", "The speed of products, measured once, before the first request.", limits->flops_per_s);
    one("memory_limit_ratio", "gauge",
        "The share of the memory's measured speed that the last 10 seconds used; above 1 if others slowed the measurement.",
        limits->memory_share);
    one("compute_limit_ratio", "gauge", "The share of the measured product speed that the last 10 seconds used; above 1 likewise.",
        limits->compute_share);
  }
  write_answers(out);
  return out;
}

void ServeMetrics::write_answers(std::string& out) const {
  std::lock_guard lock(mutex_);
  ttft_.write(out, "time_to_first_token_seconds", "From the request to its first token.");
  tpot_.write(out, "time_per_output_token_seconds", "Between tokens of an answer, on average.");
  e2e_.write(out, "e2e_request_latency_seconds", "From the request to its last token.");
  queue_.write(out, "request_queue_time_seconds", "From the request to its first step.");
  prefill_.write(out, "request_prefill_time_seconds", "From the first step to the first token.");
  decode_.write(out, "request_decode_time_seconds", "From the first token to the last.");
  prompt_.write(out, "request_prompt_tokens", "Length of the prompt.");
  generated_.write(out, "request_generation_tokens", "Length of the answer.");
  describe(out, "request_success_total", "counter", "Answers that ended, by the reason.");
  for (Finish f : {Finish::stop, Finish::length, Finish::cancelled, Finish::error})
    out += fmt::format("millrace_request_success_total{{finished_reason=\"{}\"}} {}\n",
                       f == Finish::cancelled ? std::string_view("abort") : name_of(f), finished_[size_t(f)]);
  describe(out, "http_responses_total", "counter", "Responses, by the first digit of their status.");
  for (int digit = 2; digit <= 5; digit++)
    out += fmt::format("millrace_http_responses_total{{status=\"{}xx\"}} {}\n", digit, responses_[size_t(digit)]);
  describe(out, "requests_refused_total", "counter", "Requests that found the queue full.");
  out += fmt::format("millrace_requests_refused_total {}\n", n_refused_);
}

}  // namespace mr
