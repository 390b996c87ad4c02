#include "fuzz/mutate.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace mr::fuzz {

std::vector<std::string_view> words(std::string_view text, std::string_view separators) {
  std::vector<std::string_view> out;
  for (size_t at = 0; at <= text.size();) {
    size_t end = std::min(text.find_first_of(separators, at), text.size());
    std::string_view word = text.substr(at, end - at);
    out.push_back(word.starts_with('\n') ? word.substr(1) : word);
    at = end + 1;
  }
  return out;
}

uint64_t absurd_number(Random& random, uint64_t near) {
  switch (random.pick(8)) {
    case 0:
      return near + 1;
    case 1:
      return near - 1;
    case 2:
      return near * 2;
    case 3:
      return ~0ull - random.pick(2);
    default:  // about a power of two
      return (1ull << random.pick(64)) - 1 + random.pick(3);
  }
}

std::string mutate_bytes(std::string text, size_t max_size) {
  size_t size = text.size();
  text.resize(std::max(max_size, size));
  text.resize(LLVMFuzzerMutate(reinterpret_cast<uint8_t*>(text.data()), size, text.size()));
  return text;
}

size_t write_back(const std::string& text, uint8_t* data, size_t max_size) {
  size_t n = std::min(text.size(), max_size);
  if (n > 0) std::memcpy(data, text.data(), n);
  return n;
}

size_t insert_word(uint8_t* data, size_t size, size_t max_size, std::span<const std::string_view> words, Random& random) {
  std::string_view word = words[random.pick(words.size())];
  if (random.chance(3) || size + word.size() > max_size) return LLVMFuzzerMutate(data, size, max_size);
  size_t at = random.pick(size + 1);
  std::memmove(data + at + word.size(), data + at, size - at);
  std::memcpy(data + at, word.data(), word.size());
  return size + word.size();
}

namespace {

struct Span {
  size_t begin, end;
  bool is_key;
};

// Keys and values of a JSON text, containers among them. Stops where it is no JSON any more.
std::vector<Span> spans_of(std::string_view text) {
  std::vector<Span> spans;
  std::vector<size_t> open;
  for (size_t i = 0; i < text.size();) {
    char c = text[i];
    if (c == '{' || c == '[') {
      open.push_back(i++);
    } else if (c == '}' || c == ']') {
      if (open.empty()) break;
      spans.push_back({open.back(), ++i, false});
      open.pop_back();
    } else if (c == '"') {
      size_t end = i + 1;
      while (end < text.size() && text[end] != '"') end += text[end] == '\\' ? 2 : 1;
      if (end >= text.size()) break;
      size_t after = text.find_first_not_of(" \n\r\t", end + 1);
      spans.push_back({i, end + 1, after != text.npos && text[after] == ':'});
      i = end + 1;
    } else if (c == '-' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z')) {
      size_t end = text.find_first_of(",]} \n\r\t:", i);
      end = end == text.npos ? text.size() : std::max(end, i + 1);
      spans.push_back({i, end, false});
      i = end;
    } else {
      ++i;
    }
  }
  return spans;
}

std::string absurd_value(Random& random, std::span<const std::string_view> names) {
  static const std::vector<std::string_view> values = fuzz::words(
      R"(0@-1@1@2@7@1e10@1e300@1e400@-1e300@0.5@1e-30@2147483646@2147483647@4294967296@18446744073709551615@-9223372036854775808@[]@{}@
null@true@false@""@" "@"\u0000"@"\ud83d\ude00"@"a"@[[]]@{"a":1}@[1,2]@"\u001b[2J"@3.0@100000)",
      "@");
  if (!names.empty() && random.chance(4)) return "\"" + std::string(names[random.pick(names.size())]) + "\"";
  if (random.chance(8)) return std::to_string(absurd_number(random, random.pick(1 << 16)));
  return std::string(values[random.pick(values.size())]);
}

// A value with everything up to the next, so that it can be dropped or repeated in its list or object.
Span with_comma(std::string_view text, Span span, const std::vector<Span>& spans) {
  for (const Span& key : spans)
    if (key.is_key && key.end <= span.begin && text.substr(key.end, span.begin - key.end).find_first_not_of(" \n\r\t:") == text.npos)
      span.begin = key.begin;
  size_t after = text.find_first_not_of(" \n\r\t", span.end);
  if (after != text.npos && text[after] == ',') span.end = after + 1;
  return span;
}

std::string change(const std::string& text, std::span<const std::string_view> words, Random& random, size_t max_size) {
  std::vector<Span> spans = spans_of(text);
  if (spans.empty() || random.chance(6)) return mutate_bytes(text, max_size);
  Span at = spans[random.pick(spans.size())], other = spans[random.pick(spans.size())];
  auto with = [&](Span where, const std::string& what) { return text.substr(0, where.begin) + what + text.substr(where.end); };
  if (at.is_key) {
    if (words.empty()) return with(at, text.substr(other.begin, other.end - other.begin));
    return with(at, "\"" + std::string(words[random.pick(words.size())]) + "\"");
  }
  std::string value = text.substr(at.begin, at.end - at.begin);
  switch (random.pick(6)) {
    case 0:
    case 1:
      return with(at, absurd_value(random, words));
    case 2:
      return with(at, text.substr(other.begin, other.end - other.begin));
    case 3: {  // dropped, or twice
      Span whole = with_comma(text, at, spans);
      std::string once = text.substr(whole.begin, whole.end - whole.begin);
      return with(whole, random.chance(2) ? "" : once + (once.ends_with(',') ? "" : ",") + once);
    }
    case 4: {  // nested
      static constexpr size_t depths[] = {1, 2, 20, 70};
      size_t depth = random.of(depths);
      return with(at, std::string(depth, '[') + value + std::string(depth, ']'));
    }
    default: {  // a new member, or a new element in front
      bool object = value.starts_with('{');
      if (!object && !value.starts_with('[')) return with(at, absurd_value(random, words));
      std::string key = object && !words.empty() ? "\"" + std::string(words[random.pick(words.size())]) + "\":" : object ? "\"k\":" : "";
      bool empty = value.find_first_not_of(" \n\r\t", 1) == value.size() - 1;
      return with(at, value.substr(0, 1) + key + absurd_value(random, words) + (empty ? "" : ",") + value.substr(1));
    }
  }
}

}  // namespace

std::string mutate_json(std::string text, std::span<const std::string_view> words, Random& random, size_t max_size) {
  for (size_t n = 1 + random.pick(3); n > 0; n--) {
    std::string changed = change(text, words, random, max_size);
    if (changed.size() <= max_size) text = std::move(changed);
  }
  return text;
}

std::string mutate_safetensors(std::string file, std::span<const std::string_view> words, Random& random, size_t max_size) {
  if (file.size() < 10 || random.chance(16)) return mutate_bytes(std::move(file), max_size);
  uint64_t length;
  std::memcpy(&length, file.data(), 8);
  length = std::min<uint64_t>(length, file.size() - 8);
  std::string data = file.substr(8 + length);
  std::string header = mutate_json(file.substr(8, length), words, random, max_size > 8 ? max_size - 8 : 0);
  length = random.chance(16) ? absurd_number(random, header.size()) : header.size();
  if (random.chance(4)) data.resize(std::min<size_t>(absurd_number(random, data.size()), 1024), '\1');
  return std::string(reinterpret_cast<const char*>(&length), 8) + header + data;
}

}  // namespace mr::fuzz
