// The engine's input and output.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/backend.h"
#include "decode/sampling.h"

namespace mr {

struct Request {
  std::vector<int32_t> prompt;
  SamplingParams sampling;
  int n = 1;                  // answers, sharing the prompt's state
  int first_choice = 0;       // index of the first answer: n = 3 gives the same as three requests of n = 1 with first_choice 0, 1 and 2
  int priority = 0;           // lower comes first
  std::string cache_salt;     // prefixes are shared only between requests of equal salt
  bool score_prompt = false;  // also returns the log-probability of every prompt token
  // With score_prompt: the logits [vocab] after the prompt's token at each position, in order, on the engine's thread.
  std::function<void(int position, std::span<const float> logits)> on_logits;
};

enum class Finish : uint8_t { none, stop, length, cancelled, error };
std::string_view name_of(Finish);  // "stop", "length", ...

// Of one answer, in seconds since the request was submitted.
struct Timing {
  double started_s = 0, first_token_s = 0, last_token_s = 0;
  int n_prompt = 0, n_cached = 0, n_generated = 0;  // n_cached: prompt tokens that came from the prefix cache

  double ttft_s() const { return first_token_s; }
  double prefill_tokens_per_s() const { return rate(n_prompt - n_cached, first_token_s - started_s); }
  double decode_tokens_per_s() const { return rate(n_generated - 1, last_token_s - first_token_s); }

 private:
  static double rate(int n, double seconds) { return n > 0 && seconds > 0 ? n / seconds : 0; }
};

// New output of one answer. The sink must not keep references into it.
struct TokenEvent {
  int choice = 0;  // from first_choice on
  std::vector<int32_t> tokens;
  std::vector<Sampled> sampled;  // of each token: log-probability and alternatives
  std::string text;              // whole characters only; nothing of a stop string
  std::vector<Sampled> prompt;   // score_prompt, choice 0: the next prompt tokens; NaN for the first, which nothing predicts
  Finish finish = Finish::none;  // not none: the last event of an answer
  std::string error;             // with Finish::error
  Timing timing;                 // with the last event
};

using Sink = std::function<void(const TokenEvent&)>;

}  // namespace mr
