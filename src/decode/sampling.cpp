#include "decode/sampling.h"

#include "core/error.h"

namespace mr {

static constexpr int max_stop_strings = 64, max_stop_bytes = 1024;

// Written so that NaN fails.
static void check_range(const char* field, float value, float low, float high) {
  check(value >= low && value <= high, "{} must be between {} and {}, not {}", field, low, high, value);
}

void SamplingParams::validate(int vocab) const {
  check_range("temperature", temperature, 0, 100);
  check(top_k >= 0, "top_k must be 0 (all tokens) or more, not {}", top_k);
  check(top_p > 0 && top_p <= 1, "top_p must be above 0 and at most 1, not {}", top_p);
  check_range("min_p", min_p, 0, 1);
  check(repetition_penalty > 0 && repetition_penalty <= 100, "repetition_penalty must be above 0 and at most 100, not {}",
        repetition_penalty);
  check_range("frequency_penalty", frequency_penalty, -2, 2);
  check_range("presence_penalty", presence_penalty, -2, 2);
  for (auto [token, bias] : logit_bias) {
    check(token >= 0 && token < vocab, "logit_bias names token {}, but the vocabulary has {} tokens", token, vocab);
    check(bias >= -100 && bias <= 100, "logit_bias of token {} must be between -100 and 100, not {}", token, bias);
  }
  check(max_tokens >= 0, "max_tokens must be 0 or more, not {}", max_tokens);
  check(stop.size() <= size_t(max_stop_strings), "stop has {} strings, but at most {} are allowed", stop.size(), max_stop_strings);
  for (const std::string& s : stop)
    check(!s.empty() && s.size() <= size_t(max_stop_bytes), "a stop string must have 1 to {} bytes, not {}", max_stop_bytes, s.size());
  check(logprobs >= 0 && logprobs <= vocab, "logprobs must be between 0 and the vocabulary's {}, not {}", vocab, logprobs);
}

LogitEdits::LogitEdits(const SamplingParams& params, std::span<const int32_t> prompt) {
  for (auto [token, bias] : params.logit_bias) of(token).bias = bias;
  if (params.repetition_penalty != 1)
    for (int32_t token : prompt) of(token).seen = 1;
}

LogitEdit& LogitEdits::of(int32_t token) {
  auto [place, is_new] = index_.try_emplace(token, int(edits_.size()));
  if (is_new) edits_.push_back({.token = token, .n_generated = 0, .seen = 0, .bias = 0});
  return edits_[size_t(place->second)];
}

SamplingState::SamplingState(const SamplingParams& params, uint64_t seed, int choice, std::shared_ptr<const LogitEdits> first)
    : first_(std::move(first)) {
  row_.seed = seed;
  row_.choice = choice;
  row_.temperature = params.temperature;
  row_.top_k = params.top_k;
  row_.top_p = params.top_p;
  row_.min_p = params.min_p;
  row_.repetition_penalty = params.repetition_penalty;
  row_.frequency_penalty = params.frequency_penalty;
  row_.presence_penalty = params.presence_penalty;
  row_.n_logprobs = params.logprobs;
  counts_generated_ = params.repetition_penalty != 1 || params.frequency_penalty != 0 || params.presence_penalty != 0;
}

void SamplingState::add(int32_t token) {
  if (!counts_generated_) return;
  if (!own_) own_ = std::make_unique<LogitEdits>(*first_);
  LogitEdit& e = own_->of(token);
  e.n_generated++;
  e.seen = 1;
}

SampleRow SamplingState::row(int position) const {
  SampleRow row = row_;
  row.position = position;
  row.n_edits = int32_t(edits().size());
  return row;
}

}  // namespace mr
