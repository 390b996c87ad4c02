// A benchmark load: prompts, lengths and arrivals, all from one seed or from a file, so that every engine and every
// server gets the same.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/json.h"

namespace mr {

// A length in tokens: "128"; uniform in "64-512"; or "lognormal:128:0.8", the median and the deviation of the logarithm, at most
// 16 times the median: many short, a few long, like real traffic.
struct Lengths {
  int low = 128, high = 128;
  double sigma = 0;  // > 0: lognormal around `median`, clamped to low and high
  int median = 0;
  int draw(uint64_t seed, uint32_t index, uint32_t purpose) const;
};
Lengths parse_lengths(const std::string&);  // throws Error

// One request of a file.
struct LoadItem {
  int prompt_tokens = 0;        // of a random prompt, if the item has none
  int output_tokens = 0;        // 0: the workload's
  std::string text;             // the prompt, or
  std::vector<int32_t> tokens;  // the prompt
};
// JSON lines with "prompt_tokens" (a number) or "prompt" (text or token ids), and "output_tokens" or "max_tokens". Throws Error
// naming the line; `where` is the file's name.
std::vector<LoadItem> parse_load(const std::string& lines, const std::string& where);

struct Workload {
  Lengths prompt, answer;
  int vocab = 21000;      // token ids are below it
  int shared_prefix = 0;  // length of the common prefix of all random prompts
  bool chat = false;      // for servers: /v1/chat/completions instead of /v1/completions
  bool text = false;      // prompts as words of about a token each, instead of token ids; always for chat
  std::string model;
  uint64_t seed = 0;
  uint32_t first = 0;             // index of the first request: other indices, other prompts
  std::vector<LoadItem> items{};  // if any: the requests, repeated in order
};

// Of request first + index.
const LoadItem* item_of(const Workload&, uint32_t index);  // null: it is random
int prompt_length(const Workload&, uint32_t index);        // of a random prompt
int answer_length(const Workload&, uint32_t index);
std::vector<int32_t> made_up_tokens(const Workload&, uint32_t index);
std::string made_up_text(const Workload&, uint32_t index);

std::vector<double> poisson_arrivals(double rate, size_t n, uint64_t seed);  // seconds from the start; `rate` per second on average

// Of sorted or unsorted values; between two of them by linear interpolation. 0 if there are none.
double percentile(std::vector<double> values, double share);

struct Spread {
  double mean = 0, p50 = 0, p90 = 0, p99 = 0;
};
Spread spread_of(const std::vector<double>&);
Json spread_json(const Spread&);

}  // namespace mr
