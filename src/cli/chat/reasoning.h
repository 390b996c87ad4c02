// Tells a model's reasoning from its answer: <think> … </think> and its kin at the beginning. Tags may come cut anywhere.
#pragma once

#include <string>
#include <string_view>

namespace mr {

class ReasoningSplitter {
 public:
  // The prompt may end inside of the reasoning: templates open the tag themselves.
  explicit ReasoningSplitter(std::string_view end_of_prompt = "");

  struct Parts {
    std::string reasoning, answer;
  };
  Parts split(std::string_view text);
  Parts finish();  // what was held back
  bool in_reasoning() const { return state_ == State::reasoning; }

 private:
  enum class State : uint8_t { begin, reasoning, after, answer };
  State state_ = State::begin;
  std::string_view closing_;  // the tag that ends it
  std::string held_;
};

}  // namespace mr
