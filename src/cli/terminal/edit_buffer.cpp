#include "cli/terminal/edit_buffer.h"

#include <algorithm>

#include "cli/terminal/cells.h"
#include "text/unicode.h"

namespace mr {

namespace {

char32_t code_point_at(std::string_view text, size_t at) { return next_code_point(text, at); }
bool is_word_at(std::string_view text, size_t at) { return is_word(code_point_at(text, at)); }

}  // namespace

void EditBuffer::set(std::string text) {
  text_ = std::move(text);
  cursor_ = text_.size();
}

void EditBuffer::insert(std::string_view text) {
  text_.insert(cursor_, text);
  cursor_ += text.size();
}

void EditBuffer::left() { cursor_ = previous_cluster(text_, cursor_); }
void EditBuffer::right() { cursor_ = next_cluster(text_, cursor_); }

void EditBuffer::word_left() {
  auto before = [&] { return previous_cluster(text_, cursor_); };
  while (cursor_ > 0 && !is_word_at(text_, before())) cursor_ = before();
  while (cursor_ > 0 && is_word_at(text_, before())) cursor_ = before();
}

void EditBuffer::word_right() {
  while (cursor_ < text_.size() && !is_word_at(text_, cursor_)) right();
  while (cursor_ < text_.size() && is_word_at(text_, cursor_)) right();
}

size_t EditBuffer::line_begin_at() const {
  const size_t newline = cursor_ ? text_.rfind('\n', cursor_ - 1) : std::string::npos;
  return newline == std::string::npos ? 0 : newline + 1;
}

size_t EditBuffer::line_end_at() const { return std::min(text_.find('\n', cursor_), text_.size()); }

void EditBuffer::line_begin() { cursor_ = line_begin_at(); }
void EditBuffer::line_end() { cursor_ = line_end_at(); }

void EditBuffer::backspace() {
  const size_t begin = previous_cluster(text_, cursor_);
  text_.erase(begin, cursor_ - begin);
  cursor_ = begin;
}

void EditBuffer::erase() { text_.erase(cursor_, next_cluster(text_, cursor_) - cursor_); }

void EditBuffer::cut(size_t begin, size_t end) {
  if (begin == end) return;
  killed_ = text_.substr(begin, end - begin);
  text_.erase(begin, end - begin);
  cursor_ = begin;
}

void EditBuffer::kill_to_end() {
  const size_t end = line_end_at();
  cut(cursor_, end == cursor_ ? std::min(end + 1, text_.size()) : end);
}

void EditBuffer::kill_to_begin() { cut(line_begin_at(), cursor_); }

void EditBuffer::kill_word() {
  const size_t end = cursor_;
  size_t begin = cursor_;
  auto before = [&] { return previous_cluster(text_, begin); };
  while (begin > 0 && is_space(code_point_at(text_, before()))) begin = before();
  while (begin > 0 && !is_space(code_point_at(text_, before()))) begin = before();
  cut(begin, end);
}

void EditBuffer::kill_next_word() {
  const size_t begin = cursor_;
  word_right();
  cut(begin, cursor_);
}

void EditBuffer::yank() { insert(killed_); }

void EditBuffer::transpose() {
  if (cursor_ == text_.size()) left();
  const size_t middle = cursor_, begin = previous_cluster(text_, middle), end = next_cluster(text_, middle);
  if (begin == middle || end == middle) return;
  std::rotate(text_.begin() + long(begin), text_.begin() + long(middle), text_.begin() + long(end));
  cursor_ = end;
}

}  // namespace mr
