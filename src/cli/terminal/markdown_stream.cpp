#include "cli/terminal/markdown_stream.h"

#include <algorithm>

#include "cli/terminal/cells.h"
#include "core/printable.h"
#include "text/unicode.h"

namespace mr {

namespace {

constexpr std::string_view kBold = "\x1b[1m", kNotBold = "\x1b[22m", kItalic = "\x1b[3m", kNotItalic = "\x1b[23m", kDim = "\x1b[2m",
                           kCode = "\x1b[36m", kNotCode = "\x1b[39m", kOff = "\x1b[0m";
constexpr std::string_view kClosing = "。、，．！？：；」』）】》〉…";  // no line break before these
constexpr size_t kMostIndent = 24;

bool all_are(std::string_view text, char c) {
  return std::ranges::all_of(text, [c](char d) { return c == d; });
}
size_t run_of(std::string_view text, char c) { return std::min(text.find_first_not_of(c), text.size()); }

bool stays_with_previous(char32_t c) {
  std::string character;
  append_utf8(character, c);
  return kClosing.find(character) != kClosing.npos;
}

}  // namespace

std::string harmless(std::string_view text) {
  std::string out;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find_first_of("\n\t", begin), text.size());
    std::string_view part = text.substr(begin, end - begin);
    if (end < text.size() && text[end] == '\n' && part.ends_with('\r')) part.remove_suffix(1);
    out += printable(part, std::string_view::npos);
    if (end < text.size()) out += text[end];
    begin = end + 1;
  }
  return out;
}

std::string MarkdownStream::write(std::string_view text) {
  out_.clear();
  for (size_t at = 0; at < text.size();) take(next_code_point(text, at));
  return std::move(out_);
}

std::string MarkdownStream::finish() {
  out_.clear();
  if (block_ == Block::undecided && !line_.empty()) begin_line(true);
  end_run('\n');
  end_word();
  styles_off();
  if (!fence_.empty() && colors_) out_ += kNotCode;
  fence_.clear();
  block_ = Block::undecided;
  return std::move(out_);
}

void MarkdownStream::take(char32_t c) {
  if (block_ == Block::undecided) {
    if (c != '\n') append_utf8(line_, c);
    begin_line(c == '\n');
    if (c == '\n') end_line();
  } else if (c == '\n') {
    end_run(c);
    end_word();
    end_line();
  } else if (block_ == Block::fence) {
    append_utf8(out_, c);
    column_++;
  } else {
    inline_text(c);
  }
}

// Determines the kind of the line, or waits for more of it.
void MarkdownStream::begin_line(bool is_whole) {
  if (!fence_.empty()) return code_line(is_whole);
  const Start start = start_of(line_, is_whole);
  if (start.block == Block::undecided) return;
  if (start.block == Block::fence) return open_fence(line_);
  if (start.block == Block::heading || start.indent > 0) styles_off();
  block_ = start.block;
  if (start.block == Block::heading) style(kBold);
  for (size_t at = 0; at < start.before.size();) put(next_code_point(start.before, at));
  end_word();
  indent_ = start.indent;
  const std::string rest = line_.substr(start.used);
  line_.clear();
  for (size_t at = 0; at < rest.size();) inline_text(next_code_point(rest, at));
}

MarkdownStream::Start MarkdownStream::start_of(std::string_view line, bool is_whole) const {
  const size_t indent = run_of(line, ' ');
  const std::string_view rest = line.substr(indent);
  const size_t margin = std::min(indent, kMostIndent);
  const Start plain{Block::text, std::string(margin, ' '), indent, int(margin)}, wait;
  if (rest.empty()) return is_whole ? Start{Block::text, "", indent} : wait;
  const size_t run = run_of(rest, rest[0]);
  switch (rest[0]) {
    case '`':
    case '~':
      if (run == rest.size() && run < 3) return is_whole ? plain : wait;
      if (run < 3) return plain;
      if (rest.find('`', run) != rest.npos) return plain;
      return is_whole ? Start{Block::fence} : wait;
    case '#':
      if (run > 6) return plain;
      if (run == rest.size()) return is_whole ? plain : wait;
      return rest[run] == ' ' ? Start{Block::heading, "", indent + run + 1} : plain;
    case '>':
      if (rest.size() == 1 && !is_whole) return wait;
      return {Block::text, "│ ", indent + 1 + (rest.size() > 1 && rest[1] == ' '), 2};
    case '|':
      return {Block::unwrapped, plain.before, indent};
    default:
      return item_start(line, indent, is_whole);
  }
}

// "- ", "* ", "+ ", "12. ", "12) "; a line of three or more equal marks is a rule.
MarkdownStream::Start MarkdownStream::item_start(std::string_view line, size_t indent, bool is_whole) const {
  const std::string_view rest = line.substr(indent);
  const std::string margin(std::min(indent, kMostIndent), ' ');
  const Start plain{Block::text, margin, indent, int(margin.size())}, wait;
  if (std::string_view("-*+_").find(rest[0]) != std::string_view::npos) {
    if (all_are(rest, rest[0])) {
      if (!is_whole) return wait;
      return rest.size() >= 3 ? Start{Block::unwrapped, std::string("────────"), line.size()} : plain;
    }
    if (rest[0] == '_' || rest[1] != ' ') return plain;
    return {Block::text, margin + "• ", indent + 2, int(margin.size()) + 2};
  }
  const size_t digits = std::min(rest.find_first_not_of("0123456789"), rest.size());
  if (digits == 0 || digits > 9) return plain;
  if (digits == rest.size()) return is_whole ? plain : wait;
  if (rest[digits] != '.' && rest[digits] != ')') return plain;
  if (digits + 1 == rest.size()) return is_whole ? plain : wait;
  if (rest[digits + 1] != ' ') return plain;
  return {Block::text, margin + std::string(rest.substr(0, digits + 2)), indent + digits + 2, int(margin.size() + digits) + 2};
}

void MarkdownStream::open_fence(std::string_view line) {
  const size_t indent = run_of(line, ' ');
  fence_ = line.substr(indent, run_of(line.substr(indent), line[indent]));
  styles_off();
  style(kDim);
  end_word();
  out_.append(line).append(kOff);
  line_.clear();
}

bool MarkdownStream::may_close_fence(std::string_view line) const {
  const std::string_view rest = line.substr(std::min(run_of(line, ' '), line.size()));
  return all_are(rest.substr(0, rest.find_last_not_of(' ') + 1), fence_[0]);
}

// Code is not wrapped, so that it can be copied.
void MarkdownStream::code_line(bool is_whole) {
  const bool may_close = may_close_fence(line_);
  if (may_close && !is_whole) return;
  const bool closes = may_close && size_t(std::ranges::count(line_, fence_[0])) >= fence_.size();
  if (closes) {
    out_.append(kDim).append(line_).append(kOff);
    fence_.clear();
  } else {
    if (colors_) out_ += kCode;
    out_ += line_;
    block_ = Block::fence;
  }
  column_ = int(!line_.empty());
  line_.clear();
}

void MarkdownStream::end_line() {
  const bool ends_paragraph = block_ == Block::heading || column_ == 0;
  if (block_ == Block::fence && colors_) out_ += kNotCode;
  if (fence_.empty() && (ends_paragraph || code_)) styles_off();
  end_word();
  out_ += '\n';
  block_ = Block::undecided;
  column_ = indent_ = spaces_ = 0;
  previous_ = ' ';
}

void MarkdownStream::inline_text(char32_t c) {
  if (escaped_) {
    escaped_ = false;
    if (c != '*' && c != '_' && c != '`' && c != '#' && c != '\\') put('\\');
    return put(c);
  }
  if (c == '*' || c == '_' || c == '`') {
    if (run_ != c) end_run(c);
    run_ = c;
    run_length_++;
    return;
  }
  end_run(c);
  if (c == '\\' && !code_) {
    escaped_ = true;
    return;
  }
  put(c);
}

void MarkdownStream::end_run(char32_t next) {
  if (escaped_ && next == '\n') {
    escaped_ = false;
    put('\\');
  }
  if (run_length_ == 0) return;
  const int n = run_length_;
  const char32_t mark = run_;
  run_length_ = 0;
  if (mark == '`' && (code_ == 0 || code_ == n)) {
    code_ = code_ ? 0 : n;
    return style(code_ ? kCode : kNotCode);
  }
  run_ = mark;
  if (mark == '`' || code_ || n > 3)
    for (int i = 0; i < n; i++) put(mark);
  else
    emphasis(n, next);
  run_ = 0;
}

// CommonMark's flanking rules, stricter inside words: snake_case and 2*3 are kept.
void MarkdownStream::emphasis(int n, char32_t next) {
  const bool closes = !is_space(previous_), opens = !is_space(next) && !is_word(previous_);
  const bool wants_bold = n >= 2, wants_italic = n != 2;
  const bool active = (!wants_bold || bold_) && (!wants_italic || italic_);
  const bool inside_word = run_ == '_' && is_word(previous_) && is_word(next);
  if ((active && closes && !inside_word) || (!active && opens)) {
    if (wants_bold) bold_ = !active;
    if (wants_italic) italic_ = !active;
    if (wants_bold) style(active ? kNotBold : kBold);
    if (wants_italic) style(active ? kNotItalic : kItalic);
  } else {
    for (int i = 0; i < n; i++) put(run_);
  }
}

void MarkdownStream::style(std::string_view code) {
  if (!colors_ && (code == kCode || code == kNotCode)) return;
  word_.push_back({std::string(code), 0});
}

void MarkdownStream::styles_off() {
  const bool any = bold_ || italic_ || code_ || block_ == Block::heading;
  bold_ = italic_ = false;
  code_ = 0;
  if (any) style(kOff);
  end_word();
}

void MarkdownStream::put(char32_t c) {
  previous_ = c;
  if (c == ' ' || c == '\t') {
    end_word();
    spaces_ += c == ' ' ? 1 : 4;
    return;
  }
  const int cells = cells_of(c);
  if (cells == 2 && !stays_with_previous(c)) end_word();  // a row may break between wide characters
  if (cells == 0 && !word_.empty() && word_.back().cells > 0) {
    append_utf8(word_.back().bytes, c);
    return;
  }
  std::string bytes;
  append_utf8(bytes, c);
  word_.push_back({std::move(bytes), cells});
  word_cells_ += cells;
}

void MarkdownStream::break_row() {
  out_ += '\n';
  out_.append(size_t(indent_), ' ');
  column_ = indent_;
}

void MarkdownStream::end_word() {
  if (word_.empty()) return;
  const bool wraps = block_ != Block::unwrapped;
  if (wraps && word_cells_ > 0 && column_ > indent_ && column_ + spaces_ + word_cells_ > columns_) {
    break_row();
  } else if (word_cells_ > 0) {
    out_.append(size_t(spaces_), ' ');
    column_ += spaces_;
  }
  if (word_cells_ > 0) spaces_ = 0;
  for (const Piece& p : word_) {
    if (wraps && p.cells > 0 && column_ + p.cells > columns_ && column_ > indent_) break_row();  // wider than a row
    out_ += p.bytes;
    column_ += p.cells;
  }
  word_.clear();
  word_cells_ = 0;
}

}  // namespace mr
