#include "serve/load.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "core/error.h"
#include "core/random.h"

namespace mr {

namespace {

enum Purpose : uint32_t { prompt_length, answer_length, arrival, token, shared_token };

// Special tokens and single bytes are below it in the usual vocabularies; a small one has to do with them.
constexpr int first_plain_id = 1000;

// Each is one token, with the space before it, in the usual vocabularies.
constexpr std::array words = {"time",  "people", "water", "first", "house",   "world", "night",  "small",  "river",  "light", "music",
                              "paper", "table",  "green", "story", "morning", "city",  "answer", "field",  "summer", "stone", "winter",
                              "bread", "garden", "north", "glass", "market",  "horse", "letter", "window", "island", "silver"};

int pick(uint64_t seed, uint32_t index, uint32_t position, uint32_t purpose, int n) {
  return int(uniform(seed, index, position, purpose) * n);
}

// Token i of a prompt, among n kinds; the first `shared` are the same in all.
int token_kind(const Workload& w, uint32_t index, int i, int n) {
  return i < w.shared_prefix ? pick(w.seed, 0, uint32_t(i), shared_token, n) : pick(w.seed, w.first + index, uint32_t(i), token, n);
}

}  // namespace

int Lengths::draw(uint64_t seed, uint32_t index, uint32_t purpose) const { return low + pick(seed, index, 0, purpose, high - low + 1); }

Lengths parse_lengths(const std::string& text) {
  auto number = [&](const std::string& digits) {
    check(!digits.empty() && digits.size() < 8 && digits.find_first_not_of("0123456789") == std::string::npos && std::stoi(digits) > 0,
          "'{}' is no length: give a number of tokens, 128, or a range, 64-512", text);
    return std::stoi(digits);
  };
  size_t dash = text.find('-');
  Lengths lengths;
  lengths.low = number(text.substr(0, dash));
  lengths.high = dash == std::string::npos ? lengths.low : number(text.substr(dash + 1));
  check(lengths.low <= lengths.high, "the range of lengths {} ends before it begins", text);
  return lengths;
}

std::string path_of(const Workload& w) { return w.chat ? "/v1/chat/completions" : "/v1/completions"; }

std::string request_body(const Workload& w, uint32_t index) {
  int n_prompt = w.prompt.draw(w.seed, w.first + index, prompt_length), n_answer = w.answer.draw(w.seed, w.first + index, answer_length);
  Json body{{"model", w.model},   {"max_tokens", n_answer}, {"temperature", 0},
            {"ignore_eos", true}, {"stream", true},         {"stream_options", {{"include_usage", true}}}};
  if (!w.text && !w.chat) {
    int first = w.vocab > 2 * first_plain_id ? first_plain_id : 0;
    for (int i = 0; i < n_prompt; i++) body["prompt"].push_back(first + token_kind(w, index, i, w.vocab - first));
    return body.dump();
  }
  std::string prompt;
  for (int i = 0; i < n_prompt; i++) {
    if (i > 0) prompt += ' ';
    prompt += words[size_t(token_kind(w, index, i, int(words.size())))];
  }
  if (w.chat)
    body["messages"] = Json::array({{{"role", "user"}, {"content", prompt}}});
  else
    body["prompt"] = prompt;
  return body.dump();
}

std::vector<double> poisson_arrivals(double rate, size_t n, uint64_t seed) {
  std::vector<double> at(n);
  double t = 0;
  for (size_t i = 0; i < n; i++) {
    at[i] = t;
    t -= std::log1p(-uniform(seed, uint32_t(i), 0, arrival)) / rate;
  }
  return at;
}

double percentile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  double at = share * double(values.size() - 1);
  size_t i = std::min(size_t(at), values.size() - 1), next = std::min(i + 1, values.size() - 1);
  return values[i] + (at - double(i)) * (values[next] - values[i]);
}

Spread spread_of(const std::vector<double>& values) {
  if (values.empty()) return {};
  double sum = std::accumulate(values.begin(), values.end(), 0.0);
  return {sum / double(values.size()), percentile(values, 0.5), percentile(values, 0.9), percentile(values, 0.99)};
}

bool Deadlines::met(const Outcome& o) const {
  return o.error.empty() && (ttft <= 0 || o.ttft() <= ttft) && (tpot <= 0 || o.tpot() <= tpot);
}

LoadReport summarize(const std::vector<Outcome>& outcomes, const Deadlines& deadlines) {
  LoadReport r;
  std::vector<double> ttft, tpot, e2e;
  double begin = INFINITY, end = 0;
  for (const Outcome& o : outcomes) {
    r.requests++;
    begin = std::min(begin, o.sent);
    end = std::max(end, o.done);
    r.good += deadlines.met(o);
    if (!o.error.empty()) {
      r.failed++;
      r.errors[o.error]++;
      continue;
    }
    r.prompt_tokens += o.prompt_tokens;
    r.tokens += o.n_tokens;
    ttft.push_back(o.ttft());
    e2e.push_back(o.e2e());
    if (o.n_tokens > 1) tpot.push_back(o.tpot());
  }
  r.seconds = outcomes.empty() ? 0 : end - begin;
  r.ttft = spread_of(ttft), r.tpot = spread_of(tpot), r.e2e = spread_of(e2e);
  return r;
}

static Json spread_json(const Spread& s) { return {{"mean", s.mean}, {"p50", s.p50}, {"p90", s.p90}, {"p99", s.p99}}; }

Json report_json(const LoadReport& r, const Deadlines& deadlines) {
  double seconds = std::max(r.seconds, 1e-9);
  return {{"requests", r.requests},
          {"failed", r.failed},
          {"errors", r.errors},
          {"seconds", r.seconds},
          {"prompt_tokens", r.prompt_tokens},
          {"output_tokens", r.tokens},
          {"tokens_per_s", double(r.tokens) / seconds},
          {"requests_per_s", (r.requests - r.failed) / seconds},
          {"ttft_s", spread_json(r.ttft)},
          {"tpot_s", spread_json(r.tpot)},
          {"e2e_s", spread_json(r.e2e)},
          {"ttft_deadline_s", deadlines.ttft},
          {"tpot_deadline_s", deadlines.tpot},
          {"goodput_requests_per_s", r.good / seconds},
          {"goodput_share", r.requests ? double(r.good) / r.requests : 0}};
}

}  // namespace mr
