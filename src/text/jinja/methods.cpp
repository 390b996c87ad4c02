// Methods of strings, lists, dicts and loops. Those that would change a list or dict are missing: transformers forbids them too.
#include <algorithm>
#include <charconv>

#include "core/error.h"
#include "text/jinja/evaluator.h"
#include "text/unicode.h"

namespace mr::jinja {

namespace {

using E = Evaluator&;
using V = const Value&;
using A = const Arguments&;

Value split_on(E e, std::string_view text, std::string_view separator, int64_t limit) {
  check(!separator.empty(), "split needs a separator that is not empty");
  Items parts(e.meter());
  Search search(e.meter(), separator);
  size_t pos = 0;
  for (size_t hit = 0; limit != 0 && (hit = search.first(text, pos)) != std::string_view::npos; --limit) {
    parts.push_back(Value::text(e.meter(), text.substr(pos, hit - pos)));
    pos = hit + separator.size();
  }
  parts.push_back(Value::text(e.meter(), text.substr(pos)));
  return parts;
}

Value split_on_space(E e, std::string_view text, int64_t limit) {
  e.meter().work(text.size() * 4);
  Items parts(e.meter());
  text.remove_prefix(leading_space(text));
  while (!text.empty()) {
    if (limit-- == 0) {
      parts.push_back(Value::text(e.meter(), text));
      break;
    }
    size_t end = 0;
    for (size_t pos = 0; pos < text.size() && !is_space(next_code_point(text, pos));) end = pos;
    parts.push_back(Value::text(e.meter(), text.substr(0, end)));
    text.remove_prefix(end);
    text.remove_prefix(leading_space(text));
  }
  return parts;
}

Value split(E e, V self, A a) {
  const Value* separator = a.get(0, "sep");
  int64_t limit = integer_argument(a, 1, "maxsplit", -1);
  if (separator == nullptr || separator->is_none()) return split_on_space(e, self.string(), limit);
  return split_on(e, self.string(), text_of(e, *separator, "split"), limit);
}

Value rsplit(E e, V self, A a) {
  std::string_view text = self.string(), separator = text_argument(e, a, 0, "sep", " ");
  int64_t limit = integer_argument(a, 1, "maxsplit", -1);
  Value all = split_on(e, text, separator, -1);
  auto n = static_cast<int64_t>(all.items().size());
  if (limit < 0 || n <= limit + 1) return all;
  size_t tail = 0;
  Items parts(e.meter());
  for (int64_t i = n - limit; i < n; ++i) tail += separator.size() + all.items()[static_cast<size_t>(i)].string().size();
  parts.push_back(Value::text(e.meter(), text.substr(0, text.size() - tail)));
  for (int64_t i = n - limit; i < n; ++i) parts.push_back(all.items()[static_cast<size_t>(i)]);
  return parts;
}

Value splitlines(E e, V self, A a) {
  bool keep = flag_argument(a, 0, "keepends", false);
  std::string_view text = text_of(e, self, "splitlines");
  Items lines(e.meter());
  for (size_t pos = 0; pos < text.size();) {
    size_t end = std::min(text.find_first_of("\r\n", pos), text.size());
    size_t next = std::min(end + (text.substr(end, 2) == "\r\n" ? 2 : 1), text.size());
    lines.push_back(Value::text(e.meter(), text.substr(pos, (keep ? next : end) - pos)));
    pos = next;
  }
  return lines;
}

// startswith and endswith take one string or a tuple of them.
template <class Matches>
bool any_affix(E e, A a, const char* what, Matches matches) {
  const Value* affix = a.get(0, "prefix");
  check(affix != nullptr, "{} needs an argument", what);
  if (!affix->is_list()) return matches(text_of(e, *affix, what));
  return std::any_of(affix->items().begin(), affix->items().end(), [&](V v) { return matches(text_of(e, v, what)); });
}

Value find(E e, V self, A a, bool last) {
  std::string_view text = self.string();
  Search search(e.meter(), text_argument(e, a, 0, "sub", ""));
  int64_t start = std::max<int64_t>(0, integer_argument(a, 1, "start", 0));
  size_t hit = last ? search.last(text) : search.first(text, substring(e.meter(), text, 0, start).size());
  return hit == std::string_view::npos ? int64_t{-1} : static_cast<int64_t>(length_of(e.meter(), text.substr(0, hit)));
}

Value count(E e, V self, A a) {
  std::string_view text = self.string(), wanted = text_argument(e, a, 0, "sub", "");
  if (wanted.empty()) return static_cast<int64_t>(length_of(e.meter(), text)) + 1;
  Search search(e.meter(), wanted);
  int64_t n = 0;
  for (size_t pos = 0; (pos = search.first(text, pos)) != std::string_view::npos; pos += wanted.size()) ++n;
  return n;
}

// Each run of letters starts with a capital.
Value titled(E e, V self, A) {
  std::string_view text = self.string();
  e.meter().work(text.size() * 96);  // three mappings of every character
  Text out(e.meter());
  bool inside = false;
  for (size_t pos = 0; pos < text.size();) {
    size_t begin = pos;
    char32_t c = next_code_point(text, pos);
    std::string_view character = text.substr(begin, pos - begin);
    bool cased = to_lower(character) != to_upper(character) || (is_word(c) && c > 0x7F);
    out += !cased ? std::string(character) : inside ? to_lower(character) : to_upper(character);
    inside = cased;
  }
  return out;
}

Value joined(E e, V self, A a) {
  check(!a.positional.empty(), "join needs a list");
  Value parts = e.iterate(a.positional[0]);
  Text out(e.meter());
  bool first = true;
  for (V part : parts.items()) {
    if (!first) out += self.string();
    first = false;
    out += text_of(e, part, "join");
  }
  return out;
}

const Value& field_value(A a, std::string_view field, size_t& next) {
  check(field.find_first_of(":!.[") == std::string_view::npos, "format: the field '{}' is not supported", field);
  size_t number = 0;
  auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), number);
  bool numbered = error == std::errc() && end == field.data() + field.size();
  const Value* value = a.get(field.empty() ? next++ : numbered ? number : a.positional.size(), field);
  check(value != nullptr, "format: the field '{}' has no argument", field);
  return *value;
}

// "{} {0} {name}".format(…), without format specifications.
Value formatted(E e, V self, A a) {
  std::string_view text = text_of(e, self, "format");
  Text out(e.meter());
  size_t next = 0;
  for (size_t pos = 0; pos < text.size(); ++pos) {
    char c = text[pos];
    if ((c == '{' || c == '}') && pos + 1 < text.size() && text[pos + 1] == c) {
      out += c;
      ++pos;
    } else if (c == '{') {
      size_t end = text.find('}', pos);
      check(end != std::string_view::npos, "format: a brace is not closed");
      e.meter().work(32 + a.named.size() * 8);
      print(out, field_value(a, text.substr(pos + 1, end - pos - 1), next));
      pos = end;
    } else {
      out += c;
    }
  }
  return out;
}

template <class Test>
Value all_characters(E e, V self, Test test) {
  std::string_view text = self.string();
  e.meter().work(text.size() * 8);
  for (size_t pos = 0; pos < text.size();) {
    if (!test(next_code_point(text, pos))) return false;
  }
  return !text.empty();
}

bool is_digit(char32_t c) { return c >= '0' && c <= '9'; }
bool is_letter(char32_t c) { return is_word(c) && !is_digit(c) && c != '_'; }

const Builtins& string_methods() {
  static const Builtins table = {
      {"strip", [](E e, V s, A a) -> Value { return Value::text(e.meter(), stripped(e, s.string(), a.get(0, "chars"), true, true)); }},
      {"lstrip", [](E e, V s, A a) -> Value { return Value::text(e.meter(), stripped(e, s.string(), a.get(0, "chars"), true, false)); }},
      {"rstrip", [](E e, V s, A a) -> Value { return Value::text(e.meter(), stripped(e, s.string(), a.get(0, "chars"), false, true)); }},
      {"upper", [](E e, V s, A) -> Value { return upper(e, s.string()); }},
      {"lower", [](E e, V s, A) -> Value { return lower(e, s.string()); }},
      {"casefold", [](E e, V s, A) -> Value { return lower(e, s.string()); }},
      {"title", titled},
      {"capitalize", [](E e, V s, A) -> Value { return capitalized(e, s.string()); }},
      {"split", split},
      {"rsplit", rsplit},
      {"splitlines", splitlines},
      {"join", joined},
      {"format", formatted},
      {"startswith",
       [](E e, V s, A a) -> Value { return any_affix(e, a, "startswith", [&](std::string_view x) { return s.string().starts_with(x); }); }},
      {"endswith",
       [](E e, V s, A a) -> Value { return any_affix(e, a, "endswith", [&](std::string_view x) { return s.string().ends_with(x); }); }},
      {"replace",
       [](E e, V s, A a) -> Value {
         return replaced(e, s.string(), text_argument(e, a, 0, "old", ""), text_argument(e, a, 1, "new", ""),
                         integer_argument(a, 2, "count", -1));
       }},
      {"removeprefix",
       [](E e, V s, A a) -> Value {
         std::string_view affix = text_argument(e, a, 0, "prefix", "");
         return s.string().starts_with(affix) ? Value::text(e.meter(), s.string().substr(affix.size())) : s;
       }},
      {"removesuffix",
       [](E e, V s, A a) -> Value {
         std::string_view affix = text_argument(e, a, 0, "suffix", "");
         return s.string().ends_with(affix) ? Value::text(e.meter(), s.string().substr(0, s.string().size() - affix.size())) : s;
       }},
      {"find", [](E e, V s, A a) -> Value { return find(e, s, a, false); }},
      {"rfind", [](E e, V s, A a) -> Value { return find(e, s, a, true); }},
      {"index",
       [](E e, V s, A a) -> Value {
         Value at = find(e, s, a, false);
         check(at.integer() >= 0, "index: the substring was not found");
         return at;
       }},
      {"count", count},
      {"isdigit", [](E e, V s, A) -> Value { return all_characters(e, s, is_digit); }},
      {"isnumeric", [](E e, V s, A) -> Value { return all_characters(e, s, is_digit); }},
      {"isalpha", [](E e, V s, A) -> Value { return all_characters(e, s, is_letter); }},
      {"isalnum", [](E e, V s, A) -> Value { return all_characters(e, s, [](char32_t c) { return is_letter(c) || is_digit(c); }); }},
      {"isspace", [](E e, V s, A) -> Value { return all_characters(e, s, is_space); }},
      {"isupper", [](E e, V s, A) -> Value { return is_cased(e, s.string(), true); }},
      {"islower", [](E e, V s, A) -> Value { return is_cased(e, s.string(), false); }},
  };
  return table;
}

const Builtins& dict_methods() {
  static const Builtins table = {
      {"get",
       [](E e, V s, A a) -> Value {
         check(!a.positional.empty(), "get needs a key");
         const Value* found = a.positional[0].is_undefined() ? nullptr : s.dict().find(e.meter(), a.positional[0]);
         const Value* fallback = a.get(1, "default");
         return found != nullptr ? *found : fallback != nullptr ? *fallback : Value();
       }},
      {"items",
       [](E e, V s, A) -> Value {
         Items items(e.meter());
         for (const auto& [key, value] : s.dict().entries) items.push_back(pair_of(e, key, value));
         return items;
       }},
      {"keys", [](E e, V s, A) -> Value { return e.iterate(s); }},
      {"values",
       [](E e, V s, A) -> Value {
         Items items(e.meter());
         items.reserve(s.dict().entries.size());
         for (const auto& entry : s.dict().entries) items.push_back(entry.second);
         return items;
       }},
      {"copy", [](E, V s, A) -> Value { return s; }},
  };
  return table;
}

const Builtins& list_methods() {
  static const Builtins table = {
      {"index",
       [](E e, V s, A a) -> Value {
         for (size_t i = 0; !a.positional.empty() && i < s.items().size(); ++i) {
           if (equal(e.meter(), s.items()[i], a.positional[0])) return static_cast<int64_t>(i);
         }
         fail("index: the value is not in the list");
       }},
      {"count",
       [](E e, V s, A a) -> Value {
         check(!a.positional.empty(), "count needs a value");
         auto wanted = [&](V v) { return equal(e.meter(), v, a.positional[0]); };
         return static_cast<int64_t>(std::count_if(s.items().begin(), s.items().end(), wanted));
       }},
      {"copy", [](E, V s, A) -> Value { return s; }},
  };
  return table;
}

Value loop_cycle(E, V self, A a) {
  check(!a.positional.empty(), "loop.cycle needs values");
  return a.positional[self.loop().at % a.positional.size()];
}

// True unless the arguments equal those of the last call in this loop.
Value loop_changed(E e, V self, A a) {
  Loop& loop = self.loop();
  if (!loop.running) return true;
  Value now = Items(a.positional.begin(), a.positional.end(), e.meter());
  bool changed = !loop.changed.is_list() || !equal(e.meter(), loop.changed, now);
  loop.changed = std::move(now);
  return changed;
}

const Builtins& loop_methods() {
  static const Builtins table = {{"cycle", loop_cycle}, {"changed", loop_changed}};
  return table;
}

}  // namespace

bool is_cased(Evaluator& evaluator, std::string_view text, bool as_upper) {
  bool is_upper = upper(evaluator, text) == text, is_lower = lower(evaluator, text) == text;
  return is_upper == as_upper && is_lower != as_upper;
}

Value pair_of(Evaluator& evaluator, const Value& first, const Value& second) {
  Items pair(evaluator.meter());
  pair.reserve(2);
  pair.push_back(first);
  pair.push_back(second);
  return Value(std::move(pair), true);
}

const Builtins& methods_of(const Value& object) {
  static const Builtins none;
  if (object.is_string()) return string_methods();
  if (object.is_dict()) return dict_methods();
  if (object.is_list()) return list_methods();
  return object.is_loop() ? loop_methods() : none;
}

}  // namespace mr::jinja
