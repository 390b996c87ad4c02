// A line editor with the usual keys of shells: arrows, words, kill and yank, history with search, completion, several lines, pastes.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cli/terminal/edit_buffer.h"
#include "cli/terminal/edit_view.h"
#include "cli/terminal/history.h"
#include "cli/terminal/keys.h"
#include "cli/terminal/raw_terminal.h"

namespace mr {

class LineEditor {
 public:
  struct Options {
    std::string prompt = "> ";
    std::function<bool(const std::string&)> is_complete;                      // false: Enter starts a new line
    std::function<std::vector<std::string>(const std::string&)> completions;  // of the text up to the cursor; whole texts
  };
  LineEditor(RawTerminal&, History&, Options);

  enum class Outcome : uint8_t { line, interrupt, end };
  Outcome read(std::string& line);  // interrupt: Ctrl-C in an empty line; otherwise it clears the line

 private:
  bool next_key(Key&);
  bool act(const Key&, Outcome&);  // true: the line is finished
  void edit(const Key&);
  void step_row(int by);
  void recall(long index);
  void complete();
  void search(const Key&);
  void find_older();
  void draw();
  EditView::Scene scene() const;

  RawTerminal& terminal_;
  History& history_;
  const Options options_;
  KeyDecoder keys_;
  EditBuffer buffer_;
  EditView view_;
  std::string prompt_, below_;
  long recalled_ = 0;       // index of the history entry shown; its size: the text being typed
  std::string typed_;       // the text being typed
  bool searching_ = false;  // Ctrl-R
  std::string wanted_;      // the search text
};

}  // namespace mr
