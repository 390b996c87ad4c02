#include "cli/terminal/cells.h"

#include <utf8proc.h>

#include <algorithm>

#include "text/unicode.h"

namespace mr {

int cells_of(char32_t c) {
  if (c < 0x20 || c == 0x7F) return 0;
  return std::clamp(utf8proc_charwidth(int32_t(c)), 0, 2);
}

int cells_of(std::string_view text) {
  int n = 0;
  for (size_t at = 0; at < text.size();) n += cells_of(next_code_point(text, at));
  return n;
}

std::string wrap_words(std::string_view text, int columns, int margin) {
  std::string out;
  int at = margin;
  for (size_t begin = 0, end; begin < text.size(); begin = end + 1) {
    end = std::min(text.find(' ', begin), text.size());
    const std::string_view word = text.substr(begin, end - begin);
    const int cells = cells_of(word);
    if (word.empty()) continue;
    if (at > margin && at + 1 + cells > columns) {
      out += "\n" + std::string(size_t(margin), ' ');
      at = margin;
    } else if (at > margin) {
      out += ' ';
      at++;
    }
    out += word;
    at += cells;
  }
  return out;
}

size_t next_cluster(std::string_view text, size_t at) {
  if (at >= text.size()) return text.size();
  int32_t state = 0;
  char32_t left = next_code_point(text, at);
  while (at < text.size()) {
    size_t after = at;
    const char32_t right = next_code_point(text, after);
    if (utf8proc_grapheme_break_stateful(int32_t(left), int32_t(right), &state)) break;
    left = right;
    at = after;
  }
  return at;
}

// Clusters cannot be segmented backwards: scans from the start of the line, which is always a boundary.
size_t previous_cluster(std::string_view text, size_t at) {
  if (at == 0) return 0;
  const size_t newline = at >= 2 ? text.rfind('\n', at - 2) : std::string_view::npos;
  size_t begin = newline == std::string_view::npos ? 0 : newline + 1;
  for (size_t next; (next = next_cluster(text, begin)) < at;) begin = next;
  return begin;
}

}  // namespace mr
