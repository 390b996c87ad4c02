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

ServeMetrics::ServeMetrics()
    : ttft_({.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80}),
      tpot_({.001, .0025, .005, .01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5}),
      e2e_({.01, .05, .1, .3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240}) {}

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
  if (t.n_generated > 0) ttft_.observe(t.first_token_s);
  if (t.n_generated > 1) tpot_.observe((t.last_token_s - t.first_token_s) / (t.n_generated - 1));
}

std::string ServeMetrics::text(const Stats& s, int n_waiting, int64_t n_waiting_tokens, double step_age_s) const {
  std::string out;
  auto one = [&](const char* name, const char* type, const char* help, auto value) {
    describe(out, name, type, help);
    out += fmt::format("millrace_{} {}\n", name, value);
  };
  one("num_requests_running", "gauge", "Sequences that are computed.", s.running);
  one("num_requests_waiting", "gauge", "Requests that wait for their first token or for memory.", std::max(s.waiting, n_waiting));
  one("num_tokens_waiting", "gauge", "Prompt tokens of requests without a first token.", n_waiting_tokens);
  one("kv_cache_usage_ratio", "gauge", "The share of the state's units that sequences hold, in the fullest group.", s.state_usage);
  one("prefix_cache_queries_total", "counter", "Prompt tokens that were looked up in the prefix cache.", s.prompt_tokens);
  one("prefix_cache_hits_total", "counter", "Prompt tokens that were found there.", s.prefix_hit_tokens);
  one("prompt_tokens_total", "counter", "Prompt tokens that were taken.", s.prompt_tokens);
  one("generation_tokens_total", "counter", "Tokens that were generated.", s.generated_tokens);
  one("computed_tokens_total", "counter", "Rows that went through the model.", s.computed_tokens);
  one("requests_total", "counter", "Requests that the engine took; a list of prompts is one for each.", s.requests);
  one("requests_finished_total", "counter", "Those of them that have ended, whatever the reason.", s.finished);
  one("num_preemptions_total", "counter", "Sequences that lost their state for want of memory.", s.preemptions);
  one("engine_steps_total", "counter", "Steps of the engine.", s.steps);
  one("engine_step_age_seconds", "gauge", "Time since the engine last moved while there was work; 0: it is idle.", step_age_s);
  std::lock_guard lock(mutex_);
  ttft_.write(out, "time_to_first_token_seconds", "From the request to its first token.");
  tpot_.write(out, "time_per_output_token_seconds", "Between tokens of an answer, on average.");
  e2e_.write(out, "e2e_request_latency_seconds", "From the request to its last token.");
  describe(out, "request_success_total", "counter", "Answers that ended, by the reason.");
  for (Finish f : {Finish::stop, Finish::length, Finish::cancelled, Finish::error})
    out += fmt::format("millrace_request_success_total{{finished_reason=\"{}\"}} {}\n",
                       f == Finish::cancelled ? std::string_view("abort") : name_of(f), finished_[size_t(f)]);
  describe(out, "http_responses_total", "counter", "Responses, by the first digit of their status.");
  for (int digit = 2; digit <= 5; digit++)
    out += fmt::format("millrace_http_responses_total{{status=\"{}xx\"}} {}\n", digit, responses_[size_t(digit)]);
  describe(out, "requests_refused_total", "counter", "Requests that found the queue full.");
  out += fmt::format("millrace_requests_refused_total {}\n", n_refused_);
  return out;
}

}  // namespace mr
