// Incremental markdown for a terminal: headings, bold, italics, code, lists, quotes; words are wrapped at the terminal's width. Text may
// be split anywhere: a possible marker is held back until the next character decides; an unclosed marker ends with its paragraph. Other
// text passes unchanged. The text must not contain control characters but \n and \t.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace mr {

class MarkdownStream {
 public:
  explicit MarkdownStream(int columns, bool colors = true) : columns_(columns), colors_(colors) {}

  std::string write(std::string_view text);  // the output so far
  std::string finish();                      // the rest, with every style off
  void resize(int columns) { columns_ = columns; }
  bool at_line_begin() const { return column_ == 0; }

 private:
  enum class Block : uint8_t { undecided, text, unwrapped, heading, fence };
  struct Piece {
    std::string bytes;
    int cells;
  };
  struct Start {  // the kind of a line
    Block block = Block::undecided;
    std::string before;  // shown instead of its marker
    size_t used = 0;     // bytes of the marker
    int indent = 0;      // of the rows that follow
  };

  void take(char32_t);
  void begin_line(bool is_whole);
  Start start_of(std::string_view line, bool is_whole) const;
  Start item_start(std::string_view line, size_t indent, bool is_whole) const;
  void open_fence(std::string_view line);
  bool may_close_fence(std::string_view line) const;
  void code_line(bool is_whole);
  void end_line();

  void inline_text(char32_t);
  void end_run(char32_t next);  // of equal marker characters
  void emphasis(int n, char32_t next);
  void style(std::string_view code);
  void styles_off();
  void put(char32_t);
  void end_word();
  void break_row();

  int columns_;
  const bool colors_;
  std::string out_;
  std::string line_;  // the beginning of a line whose kind is not known
  Block block_ = Block::undecided;
  std::string fence_;        // of the open code block; empty: none
  bool code_shown_ = false;  // part of the code line is already shown

  char32_t run_ = 0, previous_ = ' ';  // a run of markers, and the character before it
  int run_length_ = 0;
  bool bold_ = false, italic_ = false, escaped_ = false;
  int code_ = 0;  // backticks that opened it

  std::vector<Piece> word_;
  int word_cells_ = 0, spaces_ = 0, column_ = 0, indent_ = 0;
};

// A model's text with control and bidirectional characters shown as escapes.
std::string harmless(std::string_view text);

}  // namespace mr
