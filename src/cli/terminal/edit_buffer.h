// A text being edited, with its cursor and the kill buffer.
#pragma once

#include <string>
#include <string_view>

namespace mr {

class EditBuffer {
 public:
  const std::string& text() const { return text_; }
  size_t cursor() const { return cursor_; }  // byte offset, at a cluster boundary
  bool empty() const { return text_.empty(); }

  void set(std::string text);  // moves the cursor to its end
  void move_to(size_t at) { cursor_ = at; }
  void insert(std::string_view);

  void left();
  void right();
  void word_left();
  void word_right();
  void line_begin();
  void line_end();

  void backspace();
  void erase();
  void kill_to_end();  // of the line; there: the newline
  void kill_to_begin();
  void kill_word();  // back to white space, as in shells
  void kill_next_word();
  void yank();
  void transpose();

 private:
  void cut(size_t begin, size_t end);
  size_t line_begin_at() const;
  size_t line_end_at() const;

  std::string text_, killed_;
  size_t cursor_ = 0;
};

}  // namespace mr
