// Shows one answer as it streams. On a terminal: reasoning dim, in a few rows that collapse to one line when it ends, then the answer as
// markdown; no escape sequence of the model reaches the terminal. Elsewhere: the plain text.
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
