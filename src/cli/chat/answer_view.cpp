#include "cli/chat/answer_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "cli/terminal/edit_view.h"
#include "cli/terminal/raw_terminal.h"
#include "text/unicode.h"

namespace mr {

namespace {

constexpr int kMostRows = 6;  // of reasoning at a time

}  // namespace

AnswerView::AnswerView(Options options, std::string_view end_of_prompt)
    : options_(options),
      splitter_(options.terminal ? end_of_prompt : ""),
      markdown_(terminal_size().columns, options.colors),
      begin_(std::chrono::steady_clock::now()) {}

void AnswerView::write(std::string_view text) {
  if (!options_.terminal) print_now(text);
  take(splitter_.split(text));
}

void AnswerView::take(const ReasoningSplitter::Parts& parts) {
  reasoning_ += parts.reasoning;
  answer_ += parts.answer;
  if (!options_.terminal) return;
  if (!parts.reasoning.empty()) show_reasoning();
  if (parts.answer.empty()) return;
  fold();
  markdown_.resize(terminal_size().columns);
  print_now(markdown_.write(harmless(parts.answer)));
}

// Redraws its last rows in place.
void AnswerView::show_reasoning() {
  const TerminalSize size = terminal_size();
  const std::string text = harmless(std::string_view(reasoning_).substr(leading_space(reasoning_)));
  const auto rows = lay_out(text, std::max(4, size.columns - 1));
  const size_t n = std::min(rows.size(), size_t(std::clamp(size.rows - 2, 1, kMostRows)));
  std::string out = shown_rows_ > 1 ? fmt::format("\r\x1b[{}A\x1b[J", shown_rows_ - 1) : "\r\x1b[J";
  out += "\x1b[2m";
  for (size_t i = rows.size() - n; i < rows.size(); i++)
    out += shown(std::string_view(text).substr(rows[i].begin, rows[i].end - rows[i].begin)) + (i + 1 < rows.size() ? "\n" : "");
  print_now(out + "\x1b[0m");
  shown_rows_ = int(n);
}

void AnswerView::fold() {
  if (folded_) return;
  folded_ = true;
  if (leading_space(reasoning_) == reasoning_.size()) return;
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  std::string out = shown_rows_ > 1 ? fmt::format("\r\x1b[{}A\x1b[J", shown_rows_ - 1) : "\r\x1b[J";
  print_now(out + fmt::format("\x1b[2m▸ thought for {:.1f} s (/show reasoning)\x1b[0m\n", seconds));
}

void AnswerView::finish() {
  take(splitter_.finish());
  if (!options_.terminal) return print_now("\n");
  fold();
  print_now(markdown_.finish());
  if (!markdown_.at_line_begin()) print_now("\n");
}

}  // namespace mr
