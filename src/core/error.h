// Errors that a user can understand: a broken file, an impossible request, a wrong option. The text is one sentence
// that names the thing and the numbers; the command line prints it and exits 1, the server answers with it. Text in it
// may come from an untrusted file or request, so it is always made printable here.
#pragma once

#include <fmt/core.h>

#include <stdexcept>
#include <utility>

#include "core/printable.h"

namespace mr {

struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// fmt::format, with printable() around every argument that is text.
template <class... Args>
std::string sentence(fmt::format_string<Args...> text, Args&&... args) {
  return
      [&](auto&&... shown) { return fmt::vformat(text, fmt::make_format_args(shown...)); }(printable_argument(std::forward<Args>(args))...);
}

template <class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> text, Args&&... args) {
  throw Error(sentence(text, std::forward<Args>(args)...));
}

template <class... Args>
void check(bool ok, fmt::format_string<Args...> text, Args&&... args) {
  if (!ok) [[unlikely]]
    fail(text, std::forward<Args>(args)...);
}

}  // namespace mr
