// What a load consists of (prompts, lengths, arrivals: all from one seed, so that every server gets the same) and what its
// outcomes amount to.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/json.h"
#include "serve/client.h"

namespace mr {

// A length in tokens, uniform in [low, high]: "128" or "64-512".
struct Lengths {
  int low = 128, high = 128;
  int draw(uint64_t seed, uint32_t index, uint32_t purpose) const;
};
Lengths parse_lengths(const std::string&);  // throws Error

struct Workload {
  Lengths prompt, answer;
  int vocab = 21000;      // token ids are below it
  int shared_prefix = 0;  // tokens with which every prompt begins, of its length
  bool chat = false;      // /v1/chat/completions instead of /v1/completions
  bool text = false;      // prompts as words of about a token each, instead of token ids; chat has no other way
  std::string model;
  uint64_t seed = 0;
  uint32_t first = 0;  // number of the first request: other numbers, other prompts
};
std::string path_of(const Workload&);
std::string request_body(const Workload&, uint32_t index);                   // index counts from `first`
std::vector<double> poisson_arrivals(double rate, size_t n, uint64_t seed);  // seconds; `rate` requests a second on average

// Of sorted or unsorted values; between two of them by linear interpolation. 0 if there are none.
double percentile(std::vector<double> values, double share);

struct Spread {
  double mean = 0, p50 = 0, p90 = 0, p99 = 0;
};
Spread spread_of(const std::vector<double>&);

struct Deadlines {
  double ttft = 0, tpot = 0;  // seconds; 0: none
  bool met(const Outcome&) const;
};

struct LoadReport {
  int requests = 0, failed = 0, good = 0;  // good: whole and within the deadlines
  double seconds = 0;                      // from the first request to the last token
  int64_t prompt_tokens = 0, tokens = 0;   // of whole answers
  Spread ttft, tpot, e2e;                  // of whole answers, seconds
  std::map<std::string, int> errors;       // kind -> how often
};
LoadReport summarize(const std::vector<Outcome>&, const Deadlines& = {});
Json report_json(const LoadReport&, const Deadlines&);

}  // namespace mr
