// Untrusted text made safe for a terminal, a log or an error message: one line, no control characters, bounded length.
#pragma once

#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace mr {

inline constexpr size_t max_printable = 500;  // bytes, without the truncation mark

// Valid UTF-8 is kept. Control characters, line separators, bidirectional controls and invalid bytes become escapes; text longer than
// `limit` ends in "…" with its original length.
std::string printable(std::string_view text, size_t limit = max_printable);

// An argument of a format string: text is made printable, everything else passes.
template <class T>
decltype(auto) printable_argument(T&& value) {
  using Plain = std::remove_cvref_t<T>;
  if constexpr (std::is_convertible_v<T, std::string_view> && !std::is_same_v<Plain, std::nullptr_t>)
    return printable(std::string_view(value));
  else
    return std::forward<T>(value);
}

}  // namespace mr
