#include "cli/terminal/keys.h"

#include <algorithm>

#include "text/unicode.h"

namespace mr {

namespace {

constexpr char kEscape = '\x1b';
constexpr std::string_view kPasteBegin = "\x1b[200~", kPasteEnd = "\x1b[201~";

Key::Kind control_key(char c) {
  switch (c) {
    case 0x01:
      return Key::line_begin;
    case 0x02:
      return Key::left;
    case 0x03:
      return Key::interrupt;
    case 0x04:
      return Key::erase_or_leave;
    case 0x05:
      return Key::line_end;
    case 0x06:
      return Key::right;
    case 0x07:
      return Key::escape;
    case 0x08:
    case 0x7F:
      return Key::backspace;
    case '\t':
      return Key::tab;
    case '\n':
      return Key::newline;
    case 0x0B:
      return Key::kill_to_end;
    case 0x0C:
      return Key::redraw;
    case '\r':
      return Key::enter;
    case 0x0E:
      return Key::newer;
    case 0x10:
      return Key::older;
    case 0x12:
      return Key::search;
    case 0x14:
      return Key::transpose;
    case 0x15:
      return Key::kill_to_begin;
    case 0x17:
      return Key::kill_word;
    case 0x19:
      return Key::yank;
    case 0x1A:
      return Key::suspend;
    default:
      return Key::unknown;
  }
}

// After ESC: Alt with a key.
Key::Kind alt_key(char c) {
  switch (c) {
    case 'b':
      return Key::word_left;
    case 'f':
      return Key::word_right;
    case 'd':
      return Key::kill_next_word;
    case '<':
      return Key::oldest;
    case '>':
      return Key::newest;
    case 0x08:
    case 0x7F:
      return Key::kill_word;
    case '\r':
    case '\n':
      return Key::newline;
    default:
      return Key::unknown;
  }
}

// CSI parameters final, as in xterm; a modifier is the last parameter.
Key::Kind csi_key(std::string_view parameters, char final) {
  const bool modified = parameters.find(';') != parameters.npos;
  const std::string_view number = parameters.substr(0, parameters.find(';'));
  switch (final) {
    case 'A':
      return Key::up;
    case 'B':
      return Key::down;
    case 'C':
      return modified ? Key::word_right : Key::right;
    case 'D':
      return modified ? Key::word_left : Key::left;
    case 'H':
      return Key::line_begin;
    case 'F':
      return Key::line_end;
    case 'Z':
      return Key::tab;
    case 'u':
      return number == "13" ? Key::newline : Key::unknown;  // Shift-Enter, on terminals that report it
    case '~':
      break;
    default:
      return Key::unknown;
  }
  if (number == "1" || number == "7") return Key::line_begin;
  if (number == "4" || number == "8") return Key::line_end;
  if (number == "3") return modified ? Key::kill_next_word : Key::erase;
  return Key::unknown;
}

// Normalizes line ends to \n.
std::string pasted_text(std::string text) {
  replace_all(text, "\r\n", "\n");
  std::ranges::replace(text, '\r', '\n');
  return to_valid_utf8(text);
}

}  // namespace

std::optional<Key> KeyDecoder::next() {
  if (in_paste_) return paste();
  if (bytes_.empty()) return std::nullopt;
  if (bytes_[0] == kEscape) return escape_sequence();
  if (const auto c = static_cast<unsigned char>(bytes_[0]); c < 0x20 || c == 0x7F) {
    bytes_.erase(0, 1);
    return Key{control_key(char(c))};
  }
  if (incomplete_utf8_tail(bytes_) == bytes_.size()) return std::nullopt;
  return plain_text();
}

// All complete characters up to the next control byte.
Key KeyDecoder::plain_text() {
  size_t end = 0;
  while (end < bytes_.size() && static_cast<unsigned char>(bytes_[end]) >= 0x20 && bytes_[end] != 0x7F) end++;
  if (end == bytes_.size()) end -= incomplete_utf8_tail(bytes_);
  Key key{Key::text, to_valid_utf8(std::string_view(bytes_).substr(0, end))};
  bytes_.erase(0, end);
  return key;
}

std::optional<Key> KeyDecoder::paste() {
  const size_t end = bytes_.find(kPasteEnd, searched_);
  if (end == std::string::npos) {
    searched_ = bytes_.size() - std::min(bytes_.size(), kPasteEnd.size() - 1);
    return std::nullopt;
  }
  Key key{Key::paste, pasted_text(bytes_.substr(0, end))};
  bytes_.erase(0, end + kPasteEnd.size());
  in_paste_ = false;
  return key;
}

std::optional<Key> KeyDecoder::escape_sequence() {
  if (bytes_.size() < 2) return std::nullopt;
  auto take = [&](size_t n, Key::Kind kind) {
    bytes_.erase(0, n);
    return Key{kind};
  };
  if (bytes_[1] == kEscape) return take(1, Key::escape);
  if (bytes_[1] == 'O') {  // SS3: arrows, Home and End in application mode
    if (bytes_.size() < 3) return std::nullopt;
    return take(3, csi_key("", bytes_[2]));
  }
  if (bytes_[1] != '[') return take(2, alt_key(bytes_[1]));
  size_t end = 2;
  while (end < bytes_.size() && bytes_[end] >= 0x20 && bytes_[end] < 0x40) end++;
  if (end == bytes_.size()) return std::nullopt;
  if (bytes_.starts_with(kPasteBegin)) {
    bytes_.erase(0, kPasteBegin.size());
    in_paste_ = true;
    searched_ = 0;
    return paste();
  }
  const std::string parameters = bytes_.substr(2, end - 2);
  return take(end + 1, csi_key(parameters, bytes_[end]));
}

std::optional<Key> KeyDecoder::give_up() {
  if (in_paste_ || bytes_.empty()) return std::nullopt;
  const bool is_escape = bytes_[0] == kEscape;
  Key key = is_escape ? Key{Key::escape} : Key{Key::text, to_valid_utf8(bytes_)};
  bytes_.clear();
  return key;
}

}  // namespace mr
