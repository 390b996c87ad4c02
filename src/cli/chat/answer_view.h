// Shows one answer as it comes. On a terminal: reasoning dim, in a few rows that fold to one line when it is over, then the answer as
// markdown; nothing that the model writes reaches the terminal as a control sequence. Elsewhere: the text as it is.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "cli/chat/reasoning.h"
#include "cli/terminal/markdown_stream.h"

namespace mr {

class AnswerView {
 public:
  struct Options {
    bool terminal = false, colors = true;
  };
  AnswerView(Options, std::string_view end_of_prompt);

  void write(std::string_view text);
  void finish();  // ends the line

  const std::string& reasoning() const { return reasoning_; }
  const std::string& answer() const { return answer_; }
  bool in_reasoning() const { return splitter_.in_reasoning(); }

 private:
  void take(const ReasoningSplitter::Parts&);
  void show_reasoning();
  void fold();

  const Options options_;
  ReasoningSplitter splitter_;
  MarkdownStream markdown_;
  std::string reasoning_, answer_;
  std::chrono::steady_clock::time_point begin_;
  int shown_rows_ = 0;  // of reasoning, on the screen
  bool folded_ = false;
};

}  // namespace mr
