// The terminal in raw mode for as long as this lives: keys come as they are typed and pastes come in brackets. What is typed while
// nobody reads waits. However the program ends, the terminal gets its old mode back.
#pragma once

#include <string>

namespace mr {

struct TerminalSize {
  int columns = 80, rows = 24;
};
TerminalSize terminal_size();  // of standard output; as usual where it is none

class RawTerminal {
 public:
  RawTerminal();
  ~RawTerminal();
  RawTerminal(const RawTerminal&) = delete;

  enum class Got : uint8_t { bytes, pause, resize, end };
  Got read(std::string& bytes, int timeout_ms);  // appends; -1: waits as long as it takes

  // Ctrl-C is a key to the editor. While it is caught it is counted instead, so that whoever computes may look now and then.
  void catch_interrupts(bool);
  int n_interrupts() const;

  void suspend();  // as Ctrl-Z does; returns when the program is continued

 private:
  void enter();
  bool catching_ = false;
};

}  // namespace mr
