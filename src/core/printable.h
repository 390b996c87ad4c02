// Text of strangers, made fit for a terminal, a log or an error's sentence: one line, no control characters, a bounded length.
#pragma once

#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace mr {

inline constexpr size_t max_printable = 500;  // bytes, before the cut is marked

// UTF-8 stays as it is. Control characters, line separators, marks that turn the direction of writing, and bytes that are no
// UTF-8 become escapes; what is longer than `limit` ends in "…" and says how long it was.
std::string printable(std::string_view text, size_t limit = max_printable);

// What a format string gets for an argument: text is made printable, everything else passes.
template <class T>
decltype(auto) printable_argument(T&& value) {
  using Plain = std::remove_cvref_t<T>;
  if constexpr (std::is_convertible_v<T, std::string_view> && !std::is_same_v<Plain, std::nullptr_t>)
    return printable(std::string_view(value));
  else
    return std::forward<T>(value);
}

}  // namespace mr
