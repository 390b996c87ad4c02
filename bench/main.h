// What a benchmark's main does: runs it, and says an error as a sentence.
#pragma once

#include <fmt/format.h>

#include <exception>

namespace mr {

inline int guarded(int (*run)(int, char**), int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& e) {
    fmt::print(stderr, "{}\n", e.what());
    return 1;
  }
}

}  // namespace mr
