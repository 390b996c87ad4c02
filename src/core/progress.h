// A progress line on stderr, redrawn in place; only if stderr is a terminal.
#pragma once

#include <fmt/core.h>
#include <unistd.h>

#include <cstdio>
#include <string>

namespace mr {

class Progress {
 public:
  Progress() = default;
  Progress(const Progress&) = delete;
  ~Progress() {
    if (!is_empty_) show("");
  }
  void show(const std::string& line) {  // empty: erases it
    if (!isatty(STDERR_FILENO) || (is_empty_ && line.empty())) return;
    is_empty_ = line.empty();
    fmt::print(stderr, "\r\033[K\033[?7l{}\033[?7h", line);  // without wrapping: a narrow terminal cuts it
    std::fflush(stderr);
  }

 private:
  bool is_empty_ = true;
};

}  // namespace mr
