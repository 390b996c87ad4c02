// Sampling parameters of a request, and their translation into the rows and logit edits that a backend reads.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "backend/batch.h"

namespace mr {

struct SamplingParams {
  float temperature = 1;  // 0: greedy
  int top_k = 0;          // 0: all
  float top_p = 1, min_p = 0;
  float repetition_penalty = 1, frequency_penalty = 0, presence_penalty = 0;
  std::map<int32_t, float> logit_bias;
  std::optional<uint64_t> seed;  // none: the engine draws one
  int max_tokens = 256;
  std::vector<std::string> stop;
  bool ignore_eos = false;
  int logprobs = 0;  // alternatives per token

  void validate(int vocab) const;  // throws Error naming the field and its range
};

// One entry per distinct token whose logit is changed.
class LogitEdits {
 public:
  LogitEdits() = default;
  LogitEdits(const SamplingParams&, std::span<const int32_t> prompt);  // initial edits: biases, and the prompt's repetition penalties

  LogitEdit& of(int32_t token);
  std::span<const LogitEdit> all() const { return edits_; }

 private:
  std::vector<LogitEdit> edits_;
  std::unordered_map<int32_t, int> index_;  // token -> index in edits_
};

// The sampling state of one answer. All answers to a prompt share their initial edits; one that counts its tokens copies them on write.
class SamplingState {
 public:
  SamplingState(const SamplingParams&, uint64_t seed, int choice, std::shared_ptr<const LogitEdits> first);

  void add(int32_t token);            // it was generated
  SampleRow row(int position) const;  // for the token at `position`; the caller sets edit_begin
  std::span<const LogitEdit> edits() const { return own_ ? own_->all() : first_->all(); }
  bool counts() const { return counts_generated_; }  // edits() depend on the generated tokens

 private:
  SampleRow row_{};
  bool counts_generated_ = false;
  std::shared_ptr<const LogitEdits> first_;
  std::unique_ptr<LogitEdits> own_;  // null: nothing was counted yet
};

}  // namespace mr
