// UTF-8 checks by hand, properties and decompositions from utf8proc.
#include "text/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "core/error.h"

namespace mr {

namespace {

// The character that starts at `pos`: its length if it is whole and valid; else 0 with `bad` = the length of the maximal
// invalid subpart and `cut` = whether the text merely ended too early.
struct Scan {
  size_t length = 0, bad = 0;
  bool cut = false;
};

Scan scan_character(std::string_view text, size_t pos) {
  auto byte = [&](size_t i) { return static_cast<unsigned char>(text[pos + i]); };
  unsigned char lead = byte(0);
  if (lead < 0x80) return {1};
  if (lead < 0xC2 || lead > 0xF4) return {0, 1};
  size_t want = code_point_length(lead);
  unsigned char low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  unsigned char high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  for (size_t i = 1; i < want; ++i) {
    if (pos + i == text.size()) return {0, i, true};
    if (byte(i) < low || byte(i) > high) return {0, i};
    low = 0x80;
    high = 0xBF;
  }
  return {want};
}

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

constexpr size_t character_cost = 32;  // nanoseconds, roughly

// Whether this code point of a decomposed text is neither reordered nor composed with an earlier one: only marks, and vowels
// and final consonants of Hangul, are.
bool begins_anew(int32_t point) {
  if (point < 0x300) return true;
  if (point >= 0x1100 && point < 0x1200) return false;
  switch (utf8proc_category(point)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LO:
      return true;
    default:
      return false;
  }
}

// Canonical order by counting sort: utf8proc's own is quadratic on long runs of marks.
void order_marks(std::vector<int32_t>& points) {
  auto combining = [](int32_t c) { return utf8proc_get_property(c)->combining_class; };
  std::vector<int32_t> run;
  for (size_t begin = 0; begin < points.size();) {
    if (points[begin] < 0x300 || combining(points[begin]) == 0) {
      ++begin;
      continue;
    }
    std::array<size_t, 257> place{};  // [class + 1]: counts; then [class]: position of the next one
    size_t end = begin;
    for (; end < points.size() && combining(points[end]) != 0; ++end) ++place[combining(points[end]) + 1];
    if (end - begin > 1) {
      run.assign(points.begin() + begin, points.begin() + end);
      for (size_t c = 1; c < place.size(); ++c) place[c] += place[c - 1];
      for (int32_t c : run) points[begin + place[combining(c)]++] = c;
    }
    begin = end;
  }
}

// Appends the normal form of decomposed code points and clears them.
void append_normal(std::string& out, std::vector<int32_t>& points, bool compose, const Allowance& allowance) {
  order_marks(points);
  if (compose) {
    auto n = utf8proc_normalize_utf32(points.data(), static_cast<utf8proc_ssize_t>(points.size()),
                                      static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    check(n >= 0, "the text cannot be composed: {}", utf8proc_errmsg(n));
    points.resize(static_cast<size_t>(n));
  }
  if (out.size() + 4 * points.size() > out.capacity()) allowance.hold(out.size() + 4 * points.size());
  for (int32_t c : points) append_utf8(out, static_cast<char32_t>(c));
  points.clear();
}

template <class Map>
std::string map_characters(std::string_view text, const Allowance& allowance, Map map) {
  TimedLoop loop(allowance, "normalizing the text");
  std::string out;
  out.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) {
    loop.work(character_cost);
    map(out, next_code_point(text, pos));
  }
  return out;
}

// Calls visit(begin) for each occurrence of `wanted`, from left to right, never overlapping. Linear in both (memmem).
template <class Visit>
void each_occurrence(std::string_view text, std::string_view wanted, const Allowance& allowance, Visit visit) {
  constexpr size_t window = 1 << 16;  // bytes between checks of the clock
  if (wanted.empty()) return;
  TimedLoop loop(allowance, "replacing in the text");
  for (size_t pos = 0; text.size() - pos >= wanted.size();) {
    const size_t n = std::min(text.size() - pos, window + wanted.size() - 1);
    const void* hit = memmem(text.data() + pos, n, wanted.data(), wanted.size());
    const size_t begin = hit ? size_t(static_cast<const char*>(hit) - text.data()) : pos + n + 1 - wanted.size();
    loop.work(character_cost + begin - pos);
    if (hit) visit(begin);
    pos = hit ? begin + wanted.size() : begin;
  }
}

}  // namespace

size_t code_point_length(unsigned char lead) { return lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4; }

size_t valid_utf8_prefix(std::string_view text) {
  size_t pos = 0;
  while (pos < text.size()) {
    size_t length = scan_character(text, pos).length;
    if (length == 0) break;
    pos += length;
  }
  return pos;
}

size_t incomplete_utf8_tail(std::string_view text) {
  for (size_t n = 1; n <= std::min<size_t>(3, text.size()); ++n) {
    auto byte = static_cast<unsigned char>(text[text.size() - n]);
    if (byte < 0x80) return 0;
    if (byte >= 0xC0) return scan_character(text, text.size() - n).cut ? n : 0;
  }
  return 0;
}

std::string to_valid_utf8(std::string_view text) {
  std::string out;
  size_t pos = 0;
  while (true) {
    size_t good = valid_utf8_prefix(text.substr(pos));
    out.append(text.substr(pos, good));
    pos += good;
    if (pos == text.size()) return out;
    out.append(replacement_character);
    pos += scan_character(text, pos).bad;
  }
}

char32_t next_code_point(std::string_view text, size_t& pos) {
  auto lead = static_cast<unsigned char>(text[pos]);
  size_t length = std::min(code_point_length(lead), text.size() - pos);
  static constexpr unsigned char mask[] = {0, 0x7F, 0x1F, 0x0F, 0x07};
  char32_t c = lead & mask[length];
  for (size_t i = 1; i < length; ++i) c = c << 6 | (static_cast<unsigned char>(text[pos + i]) & 0x3F);
  pos += length;
  return c;
}

void append_utf8(std::string& out, char32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xC0 | c >> 6);
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    out += static_cast<char>(0xE0 | c >> 12);
    out += static_cast<char>(0x80 | (c >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | c >> 18);
    out += static_cast<char>(0x80 | (c >> 12 & 0x3F));
    out += static_cast<char>(0x80 | (c >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  }
}

size_t count_code_points(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
}

bool is_space(char32_t c) {
  return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_word(char32_t c) {
  switch (utf8proc_category(static_cast<int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return c == 0x200C || c == 0x200D;
  }
}

size_t leading_space(std::string_view text) {
  size_t end = 0;
  for (size_t pos = 0; pos < text.size() && is_space(next_code_point(text, pos));) end = pos;
  return end;
}

size_t trailing_space(std::string_view text) {
  size_t begin = text.size();
  while (begin > 0) {
    size_t pos = begin - 1;
    while (pos > 0 && (text[pos] & 0xC0) == 0x80) --pos;
    size_t next = pos;
    if (!is_space(next_code_point(text, next))) break;
    begin = pos;
  }
  return text.size() - begin;
}

// In parts of a few thousand code points: the decomposed form may be twenty times as large.
std::string normalize(std::string_view text, NormalForm form, const Allowance& allowance) {
  constexpr size_t enough = 4096;
  if (is_ascii(text)) return std::string(text);
  const bool compatible = form == NormalForm::nfkc || form == NormalForm::nfkd,
             compose = form == NormalForm::nfc || form == NormalForm::nfkc;
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_DECOMPOSE | (compatible ? UTF8PROC_COMPAT : 0));
  TimedLoop loop(allowance, "normalizing the text");
  std::string out;
  out.reserve(text.size());
  std::vector<int32_t> points;
  int32_t parts[32];
  int boundary = 0;
  for (size_t pos = 0; pos < text.size();) {
    loop.work(2 * character_cost);
    auto c = static_cast<int32_t>(next_code_point(text, pos));
    auto n = utf8proc_decompose_char(c, parts, 32, options, &boundary);
    check(n >= 0 && n <= 32, "U+{:04X} cannot be decomposed", c);
    if (points.size() >= enough && n > 0 && begins_anew(parts[0])) append_normal(out, points, compose, allowance);
    points.insert(points.end(), parts, parts + n);
  }
  append_normal(out, points, compose, allowance);
  return out;
}

std::string to_lower(std::string_view text, const Allowance& allowance) {
  return map_characters(text, allowance, [](std::string& out, char32_t c) {
    if (c == 0x130) {
      out += "i\xCC\x87";  // the only lower case of two characters
    } else {
      append_utf8(out, static_cast<char32_t>(utf8proc_tolower(static_cast<int32_t>(c))));
    }
  });
}

std::string to_upper(std::string_view text, const Allowance& allowance) {
  return map_characters(text, allowance, [](std::string& out, char32_t c) {
    if (c == 0xDF) {
      out += "SS";
    } else {
      append_utf8(out, static_cast<char32_t>(utf8proc_toupper(static_cast<int32_t>(c))));
    }
  });
}

std::string strip_accents(std::string_view text, const Allowance& allowance) {
  return map_characters(text, allowance, [](std::string& out, char32_t c) {
    auto category = utf8proc_category(static_cast<int32_t>(c));
    if (category != UTF8PROC_CATEGORY_MN && category != UTF8PROC_CATEGORY_MC && category != UTF8PROC_CATEGORY_ME) append_utf8(out, c);
  });
}

size_t count_of(std::string_view text, std::string_view wanted, const Allowance& allowance) {
  size_t n = 0;
  each_occurrence(text, wanted, allowance, [&](size_t) { ++n; });
  return n;
}

void replace_all(std::string& text, std::string_view from, std::string_view to, const Allowance& allowance) {
  std::string out;
  size_t pos = 0;
  each_occurrence(text, from, allowance, [&](size_t hit) {
    out.append(text, pos, hit - pos).append(to);
    pos = hit + from.size();
  });
  if (pos > 0) text = out.append(text, pos);
}

}  // namespace mr
