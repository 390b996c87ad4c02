#include "core/printable.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

namespace mr {

namespace {

struct Character {
  size_t length;  // bytes; 0: invalid UTF-8
  char32_t code;
};

Character character_at(std::string_view text, size_t at) {
  auto byte = [&](size_t i) { return static_cast<unsigned char>(text[at + i]); };
  unsigned char lead = byte(0);
  if (lead < 0x80) return {1, lead};
  size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() - at < length) return {0, 0};
  char32_t code = lead & (0x7F >> length);
  for (size_t i = 1; i < length; i++) {
    if ((byte(i) & 0xC0) != 0x80) return {0, 0};
    code = code << 6 | (byte(i) & 0x3F);
  }
  constexpr char32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
  bool surrogate = code >= 0xD800 && code <= 0xDFFF;
  return code < least[length] || surrogate || code > 0x10FFFF ? Character{0, 0} : Character{length, code};
}

bool acts_on_the_terminal(char32_t c) {
  return c < 0x20 || (c >= 0x7F && c < 0xA0) || c == 0x2028 || c == 0x2029 || c == 0x200E || c == 0x200F || (c >= 0x202A && c <= 0x202E) ||
         (c >= 0x2066 && c <= 0x2069);
}

std::string escape(char32_t c) {
  switch (c) {
    case '\n':
      return "\\n";
    case '\r':
      return "\\r";
    case '\t':
      return "\\t";
    default:
      return c < 0x100 ? fmt::format("\\x{:02x}", uint32_t(c)) : fmt::format("\\u{:04x}", uint32_t(c));
  }
}

}  // namespace

std::string printable(std::string_view text, size_t limit) {
  std::string out;
  size_t at = 0;
  while (at < text.size() && out.size() < limit) {
    Character c = character_at(text, at);
    if (c.length == 0)
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[at]));
    else if (acts_on_the_terminal(c.code))
      out += escape(c.code);
    else
      out += text.substr(at, c.length);
    at += std::max<size_t>(c.length, 1);
  }
  if (at < text.size()) out += fmt::format("… ({} bytes)", text.size());
  return out;
}

}  // namespace mr
