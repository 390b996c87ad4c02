// RAII raw mode of the terminal: keys arrive as they are typed, pastes are bracketed. Input typed in between is kept. The old mode is
// restored however the program ends.
#pragma once

#include <string>
#include <string_view>

namespace mr {

struct TerminalSize {
  int columns = 80, rows = 24;
};
void print_now(std::string_view text);  // to standard output, flushed
TerminalSize terminal_size();           // of standard output; the default if it is not a terminal

class RawTerminal {
 public:
  RawTerminal();
  ~RawTerminal();
  RawTerminal(const RawTerminal&) = delete;

  enum class Got : uint8_t { bytes, pause, resize, end };
  Got read(std::string& bytes, int timeout_ms);  // appends; -1: no timeout

  // For the editor Ctrl-C is a key. While caught, it is counted instead, to be polled during an answer.
  void catch_interrupts(bool);
  int n_interrupts() const;

  void suspend();  // as by Ctrl-Z; returns when the program is continued

 private:
  void enter();
  bool catching_ = false;
};

}  // namespace mr
