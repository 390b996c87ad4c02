// Separates a model's reasoning from its answer: <think> … </think> and similar tags at the beginning. Incremental: tags may be split.
#pragma once

#include <string>
#include <string_view>

namespace mr {

class ReasoningSplitter {
 public:
  // The prompt may end inside the reasoning: some templates open the tag.
  explicit ReasoningSplitter(std::string_view end_of_prompt = "");

  struct Parts {
    std::string reasoning, answer;
  };
  Parts split(std::string_view text);
  Parts finish();  // the text held back
  bool in_reasoning() const { return state_ == State::reasoning; }

 private:
  enum class State : uint8_t { begin, reasoning, after, answer };
  State state_ = State::begin;
  std::string_view closing_;  // the closing tag
  std::string held_;
};

}  // namespace mr
