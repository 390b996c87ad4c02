// Errors that a user can understand: a broken file, an impossible request, a wrong option. The text is one sentence
// that names the thing and the numbers; the command line prints it and exits 1, the server answers with it.
#pragma once

#include <fmt/core.h>

#include <stdexcept>
#include <utility>

namespace mr {

struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

template <class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> text, Args&&... args) {
  throw Error(fmt::format(text, std::forward<Args>(args)...));
}

template <class... Args>
void check(bool ok, fmt::format_string<Args...> text, Args&&... args) {
  if (!ok) [[unlikely]]
    fail(text, std::forward<Args>(args)...);
}

}  // namespace mr
