// Decodes the bytes of a terminal in raw mode to keys. Incremental: escape sequences may be split; a bracketed paste is one key.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace mr {

struct Key {
  enum Kind : uint8_t {
    text,
    paste,
    enter,
    newline,
    tab,
    backspace,
    erase,
    left,
    right,
    up,
    down,
    word_left,
    word_right,
    line_begin,
    line_end,
    older,
    newer,
    oldest,
    newest,
    kill_to_end,
    kill_to_begin,
    kill_word,
    kill_next_word,
    yank,
    transpose,
    search,
    redraw,
    interrupt,
    erase_or_leave,
    suspend,
    escape,
    unknown
  };
  Kind kind = unknown;
  std::string text_of = {};  // for text and paste: valid UTF-8
};

class KeyDecoder {
 public:
  void feed(std::string_view bytes) { bytes_ += bytes; }
  std::optional<Key> next();  // none: more bytes are needed
  // An incomplete key is pending. A lone Escape looks like the start of a sequence: after a pause, give_up() makes it a key.
  bool is_partial() const { return !bytes_.empty(); }
  bool in_paste() const { return in_paste_; }
  std::optional<Key> give_up();

 private:
  std::optional<Key> paste();
  std::optional<Key> escape_sequence();
  Key plain_text();

  std::string bytes_;
  bool in_paste_ = false;
  size_t searched_ = 0;  // bytes of a paste already searched for its end
};

}  // namespace mr
