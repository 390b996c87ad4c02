// Operations on strings that filters and methods share.
#include <algorithm>
#include <bit>

#include "core/error.h"
#include "text/jinja/evaluator.h"
#include "text/unicode.h"

namespace mr::jinja {

namespace {

constexpr size_t case_cost = 24;  // of one byte: utf8proc's tables

// A character's mapping does not depend on its neighbours, so a long text is mapped in pieces.
Text mapped(Evaluator& evaluator, std::string_view text, std::string (*map)(std::string_view, const Allowance&)) {
  evaluator.meter().work(64 + text.size() * case_cost);
  Text out(evaluator.meter());
  while (!text.empty()) {
    std::string_view piece = text.substr(0, 4096);
    piece.remove_suffix(incomplete_utf8_tail(piece));
    out += map(piece, {});
    text.remove_prefix(piece.size());
  }
  return out;
}

// A set of characters with lookup in logarithmic time.
class CharacterSet {
 public:
  CharacterSet(Meter& meter, std::string_view characters) : meter_(meter), sorted_(meter) {
    meter.work(characters.size() * 64);  // for the sort
    for (size_t pos = 0; pos < characters.size();) sorted_.push_back(next_code_point(characters, pos));
    std::sort(sorted_.begin(), sorted_.end());
    sorted_.erase(std::unique(sorted_.begin(), sorted_.end()), sorted_.end());
  }
  bool has(char32_t c) const {
    meter_.work(16 + 8 * static_cast<size_t>(std::bit_width(sorted_.size())));
    return std::binary_search(sorted_.begin(), sorted_.end(), c);
  }

 private:
  Meter& meter_;
  std::vector<char32_t, Counted<char32_t>> sorted_;
};

template <class Unwanted>
std::string_view strip(Meter& meter, std::string_view text, bool left, bool right, Unwanted unwanted) {
  while (left && !text.empty()) {
    meter.work(8);
    size_t pos = 0;
    if (!unwanted(next_code_point(text, pos))) break;
    text.remove_prefix(pos);
  }
  while (right && !text.empty()) {
    meter.work(8);
    size_t last = text.size() - 1;
    while (last > 0 && (text[last] & 0xC0) == 0x80) --last;
    size_t pos = last;
    if (!unwanted(next_code_point(text, pos))) break;
    text.remove_suffix(text.size() - last);
  }
  return text;
}

}  // namespace

Value as_string(Evaluator& evaluator, const Value& value) {
  if (value.is_string()) return value;
  Text text(evaluator.meter());
  print(text, value);
  return text;
}

Text replaced(Evaluator& evaluator, std::string_view text, std::string_view from, std::string_view to, int64_t count) {
  Meter& meter = evaluator.meter();
  Text out(meter);
  size_t pos = 0;
  if (from.empty()) {  // Python inserts it around every character
    meter.work(text.size() * 8);
    if (count != 0) out += to;
    for (int64_t done = 1; pos < text.size(); ++done) {
      size_t length = code_point_length(static_cast<unsigned char>(text[pos]));
      out += text.substr(pos, length);
      if (count < 0 || done < count) out += to;
      pos += length;
    }
    return out;
  }
  Search search(meter, from);
  for (size_t hit = 0; count != 0 && (hit = search.first(text, pos)) != std::string_view::npos; --count) {
    out += text.substr(pos, hit - pos);
    out += to;
    pos = hit + from.size();
  }
  out += text.substr(pos);
  return out;
}

std::string_view stripped(Evaluator& evaluator, std::string_view text, const Value* characters, bool left, bool right) {
  if (characters == nullptr || characters->is_none()) return strip(evaluator.meter(), text, left, right, is_space);
  CharacterSet set(evaluator.meter(), text_of(evaluator, *characters, "strip"));
  return strip(evaluator.meter(), text, left, right, [&](char32_t c) { return set.has(c); });
}

Text lower(Evaluator& evaluator, std::string_view text) { return mapped(evaluator, text, to_lower); }
Text upper(Evaluator& evaluator, std::string_view text) { return mapped(evaluator, text, to_upper); }

Text capitalized(Evaluator& evaluator, std::string_view text) {
  size_t first = text.empty() ? 0 : std::min(code_point_length(static_cast<unsigned char>(text[0])), text.size());
  Text out = upper(evaluator, text.substr(0, first));
  out += lower(evaluator, text.substr(first));
  return out;
}

}  // namespace mr::jinja
