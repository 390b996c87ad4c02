#include "cli/terminal/edit_view.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/terminal/cells.h"
#include "text/unicode.h"

namespace mr {

namespace {

constexpr std::string_view kTab = "    ";

bool is_control(char32_t c) { return c < 0x20 || (c >= 0x7F && c < 0xA0); }

int cells_shown(char32_t c) { return c == '\t' ? int(kTab.size()) : is_control(c) ? 2 : cells_of(c); }

}  // namespace

std::string shown(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const char32_t c = next_code_point(text, at);
    if (c == '\t')
      out += kTab;
    else if (is_control(c))
      out += c == 0x7F ? "^?" : c >= 0x80 ? "^~" : std::string("^") + char(c + '@');
    else
      out += text.substr(begin, at - begin);
  }
  return out;
}

int shown_cells(std::string_view text) {
  int n = 0;
  for (size_t at = 0; at < text.size();) n += cells_shown(next_code_point(text, at));
  return n;
}

std::vector<EditRow> lay_out(std::string_view text, int columns) {
  std::vector<EditRow> rows{{0, 0}};
  int column = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    if (text[at] == '\n') {
      rows.back().end = at++;
      rows.push_back({at, at});
      column = 0;
      continue;
    }
    at = next_cluster(text, at);
    const int cells = shown_cells(text.substr(begin, at - begin));
    if (column > 0 && column + cells > columns) {
      rows.push_back({begin, begin});
      column = 0;
    }
    column += cells;
    rows.back().end = at;
  }
  return rows;
}

size_t row_of(const std::vector<EditRow>& rows, size_t cursor) {
  auto after = std::ranges::upper_bound(rows, cursor, {}, &EditRow::begin);
  return size_t(after - rows.begin()) - 1;
}

size_t nearest_in_row(std::string_view text, const EditRow& row, int cells) {
  size_t at = row.begin;
  for (int column = 0; at < row.end;) {
    const size_t next = next_cluster(text, at);
    column += shown_cells(text.substr(at, next - at));
    if (column > cells) break;
    at = next;
  }
  return at;
}

int text_columns(std::string_view prompt, TerminalSize size) { return std::max(4, size.columns - 1 - cells_of(prompt)); }

// Rows leave the last column free, so only a narrower screen rewraps rows already drawn.
std::string EditView::back_to_top(TerminalSize size) const {
  int up = 0;
  for (size_t i = 0; i < above_.size(); i++) up += above_[i] ? (above_[i] - 1) / size.columns : 0;
  up += int(above_.size()) - 1;
  return up > 0 ? fmt::format("\r\x1b[{}A\x1b[J", up) : "\r\x1b[J";
}

std::string EditView::draw(const Scene& s, TerminalSize size) {
  const int indent = cells_of(s.prompt);
  const auto rows = lay_out(s.text, text_columns(s.prompt, size));
  const size_t cursor_row = row_of(rows, s.cursor);
  const size_t height = size_t(std::max(1, size.rows - (s.below.empty() ? 0 : 1)));
  const size_t n = std::min(rows.size(), height);
  const size_t top = std::min(rows.size() - n, cursor_row >= n / 2 ? cursor_row - n / 2 : 0);

  std::string out = back_to_top(size);
  above_.clear();
  for (size_t i = top; i < top + n; i++) {
    if (i > top) out += "\r\n";
    out += i == 0 ? std::string(s.prompt) : std::string(size_t(indent), ' ');
    const std::string_view text = s.text.substr(rows[i].begin, rows[i].end - rows[i].begin);
    out += shown(text);
    if (i <= cursor_row) above_.push_back(indent + shown_cells(text));
  }
  size_t down = top + n - 1 - cursor_row;
  if (!s.below.empty()) {
    out += "\r\n\x1b[2m" + std::string(s.below) + "\x1b[22m";
    down++;
  }
  if (down > 0) out += fmt::format("\x1b[{}A", down);
  const int column = indent + shown_cells(s.text.substr(rows[cursor_row].begin, s.cursor - rows[cursor_row].begin));
  return out + (column > 0 ? fmt::format("\r\x1b[{}C", column) : "\r");
}

std::string EditView::finish(const Scene& s, TerminalSize size) {
  std::string out = back_to_top(size);
  const auto rows = lay_out(s.text, text_columns(s.prompt, size));
  for (size_t i = 0; i < rows.size(); i++) {
    out += i == 0 ? std::string(s.prompt) : std::string(size_t(cells_of(s.prompt)), ' ');
    out += shown(s.text.substr(rows[i].begin, rows[i].end - rows[i].begin)) + "\r\n";
  }
  reset();
  return out;
}

}  // namespace mr
