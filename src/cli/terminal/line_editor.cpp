#include "cli/terminal/line_editor.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <map>

#include "cli/terminal/cells.h"

namespace mr {

namespace {

constexpr int kEscapeWaitMs = 50;  // to tell a lone Escape from the start of a sequence

std::string common_prefix(const std::vector<std::string>& texts) {
  std::string prefix = texts[0];
  for (const std::string& t : texts) {
    auto [a, b] = std::ranges::mismatch(prefix, t);
    prefix.resize(size_t(a - prefix.begin()));
  }
  return prefix;
}

}  // namespace

LineEditor::LineEditor(RawTerminal& terminal, History& history, Options options)
    : terminal_(terminal), history_(history), options_(std::move(options)), prompt_(options_.prompt) {}

EditView::Scene LineEditor::scene() const { return {prompt_, buffer_.text(), buffer_.cursor(), below_}; }

void LineEditor::draw() { print_now(view_.draw(scene(), terminal_size())); }

LineEditor::Outcome LineEditor::read(std::string& line) {
  buffer_.set("");
  below_.clear();
  recalled_ = long(history_.entries().size());
  Outcome outcome = Outcome::end;
  draw();
  for (Key key; next_key(key);) {
    const bool over = act(key, outcome);
    if (over) break;
    if (!keys_.is_partial()) draw();  // one redraw for all pending keys
  }
  searching_ = false;
  prompt_ = options_.prompt;
  below_.clear();
  print_now(view_.finish(scene(), terminal_size()));
  line = buffer_.text();
  return outcome;
}

// False: the terminal was closed.
bool LineEditor::next_key(Key& key) {
  for (;;) {
    std::optional<Key> found = keys_.next();
    if (!found) {
      const bool may_be_whole = keys_.is_partial() && !keys_.in_paste();
      std::string bytes;
      const RawTerminal::Got got = terminal_.read(bytes, may_be_whole ? kEscapeWaitMs : -1);
      if (got == RawTerminal::Got::end) return false;
      if (got == RawTerminal::Got::resize) draw();
      keys_.feed(bytes);
      if (got == RawTerminal::Got::pause) found = keys_.give_up();
    }
    if (!found) continue;
    key = std::move(*found);
    return true;
  }
}

bool LineEditor::act(const Key& key, Outcome& outcome) {
  below_.clear();
  if (searching_) {
    search(key);
    if (searching_ || key.kind == Key::escape || key.kind == Key::interrupt) return false;
  }
  switch (key.kind) {
    case Key::enter:
      buffer_.move_to(buffer_.text().size());
      if (options_.is_complete && !options_.is_complete(buffer_.text())) {
        buffer_.insert("\n");
        return false;
      }
      outcome = Outcome::line;
      return true;
    case Key::interrupt:
      outcome = Outcome::interrupt;
      if (buffer_.empty()) return true;
      print_now(view_.finish(scene(), terminal_size()));
      buffer_.set("");
      recalled_ = long(history_.entries().size());
      return false;
    case Key::erase_or_leave:
      outcome = Outcome::end;
      if (buffer_.empty()) return true;
      buffer_.erase();
      return false;
    case Key::suspend:
      print_now(view_.finish(scene(), terminal_size()));
      terminal_.suspend();
      return false;
    default:
      edit(key);
      return false;
  }
}

// Keys that need the text and its cursor alone.
static const std::map<Key::Kind, void (EditBuffer::*)()> kEdits{
    {Key::backspace, &EditBuffer::backspace},
    {Key::erase, &EditBuffer::erase},
    {Key::left, &EditBuffer::left},
    {Key::right, &EditBuffer::right},
    {Key::word_left, &EditBuffer::word_left},
    {Key::word_right, &EditBuffer::word_right},
    {Key::line_begin, &EditBuffer::line_begin},
    {Key::line_end, &EditBuffer::line_end},
    {Key::kill_to_end, &EditBuffer::kill_to_end},
    {Key::kill_to_begin, &EditBuffer::kill_to_begin},
    {Key::kill_word, &EditBuffer::kill_word},
    {Key::kill_next_word, &EditBuffer::kill_next_word},
    {Key::yank, &EditBuffer::yank},
    {Key::transpose, &EditBuffer::transpose},
};

void LineEditor::edit(const Key& key) {
  if (const auto found = kEdits.find(key.kind); found != kEdits.end()) return (buffer_.*found->second)();
  const long n = long(history_.entries().size());
  switch (key.kind) {
    case Key::text:
    case Key::paste:
      buffer_.insert(key.text_of);
      break;
    case Key::newline:
      buffer_.insert("\n");
      break;
    case Key::tab:
      complete();
      break;
    case Key::up:
      step_row(-1);
      break;
    case Key::down:
      step_row(+1);
      break;
    case Key::older:
      recall(recalled_ - 1);
      break;
    case Key::newer:
      recall(recalled_ + 1);
      break;
    case Key::oldest:
      recall(0);
      break;
    case Key::newest:
      recall(n);
      break;
    case Key::search:
      search(key);
      break;
    case Key::redraw:
      print_now("\x1b[H\x1b[2J");
      view_.reset();
      break;
    default:
      break;
  }
}

// Moves within a text of several rows, else through the history.
void LineEditor::step_row(int by) {
  const auto rows = lay_out(buffer_.text(), text_columns(prompt_, terminal_size()));
  const long row = long(row_of(rows, buffer_.cursor())), next = row + by;
  if (next < 0 || next >= long(rows.size())) return recall(recalled_ + by);
  const size_t begin = rows[size_t(row)].begin;
  const int column = shown_cells(std::string_view(buffer_.text()).substr(begin, buffer_.cursor() - begin));
  buffer_.move_to(nearest_in_row(buffer_.text(), rows[size_t(next)], column));
}

void LineEditor::recall(long index) {
  const long n = long(history_.entries().size());
  if (index < 0 || index > n || index == recalled_) return;
  if (recalled_ == n) typed_ = buffer_.text();
  recalled_ = index;
  buffer_.set(index == n ? typed_ : history_.entries()[size_t(index)]);
}

void LineEditor::complete() {
  const std::string before = buffer_.text().substr(0, buffer_.cursor());
  const auto found = options_.completions ? options_.completions(before) : std::vector<std::string>{};
  if (found.empty()) return;
  const std::string common = common_prefix(found);
  if (common.size() > before.size()) buffer_.insert(std::string_view(common).substr(before.size()));
  if (found.size() == 1) return;
  for (std::string f : found) {
    if (f.ends_with(' ')) f.pop_back();
    below_ += (below_.empty() ? "" : "  ") + f.substr(f.find_last_of(' ') + 1);
  }
  const int columns = terminal_size().columns;
  while (cells_of(below_) >= columns) below_.resize(previous_cluster(below_, below_.size()));
}

// Ctrl-R: incremental search in older entries; any other key accepts the match.
void LineEditor::search(const Key& key) {
  if (!searching_) {
    searching_ = true;
    wanted_.clear();
    if (recalled_ == long(history_.entries().size())) typed_ = buffer_.text();
  } else if (key.kind == Key::text) {
    wanted_ += key.text_of;
    if (buffer_.text().find(wanted_) == std::string::npos) find_older();
  } else if (key.kind == Key::backspace) {
    wanted_.resize(previous_cluster(wanted_, wanted_.size()));
  } else if (key.kind == Key::search) {
    find_older();
  } else {
    searching_ = false;
    prompt_ = options_.prompt;
    if (key.kind == Key::escape || key.kind == Key::interrupt) {
      recalled_ = long(history_.entries().size());
      buffer_.set(typed_);
    }
    return;
  }
  prompt_ = fmt::format("search '{}': ", shown(wanted_));
}

void LineEditor::find_older() {
  for (long i = recalled_ - 1; i >= 0 && !wanted_.empty(); i--) {
    const std::string& entry = history_.entries()[size_t(i)];
    if (entry.find(wanted_) == std::string::npos) continue;
    recalled_ = i;
    buffer_.set(entry);
    return;
  }
  below_ = "no older one";
}

}  // namespace mr
