// Methods of strings, lists and dicts. Those that would change a list or dict are missing: transformers forbids them too.
#include <algorithm>
#include <functional>

#include "core/error.h"
#include "text/jinja/evaluator.h"
#include "text/unicode.h"

namespace mr::jinja {

namespace {

using Table = std::unordered_map<std::string, Callable::Function>;

std::vector<Value> split_on(Evaluator& evaluator, const std::string& text, const std::string& separator, int64_t limit) {
  check(!separator.empty(), "split needs a separator that is not empty");
  std::vector<Value> parts;
  size_t pos = 0;
  for (size_t hit = text.find(separator); hit != std::string::npos && limit != 0; hit = text.find(separator, pos), --limit) {
    parts.emplace_back(text.substr(pos, hit - pos));
    pos = hit + separator.size();
    evaluator.charge(64);
  }
  parts.emplace_back(text.substr(pos));
  return parts;
}

std::vector<Value> split_on_space(Evaluator& evaluator, std::string_view text, int64_t limit) {
  std::vector<Value> parts;
  text.remove_prefix(leading_space(text));
  while (!text.empty()) {
    if (limit-- == 0) {
      parts.emplace_back(std::string(text.substr(0, text.size() - trailing_space(text))));
      break;
    }
    size_t end = 0;
    for (size_t pos = 0; pos < text.size() && !is_space(next_code_point(text, pos));) end = pos;
    parts.emplace_back(std::string(text.substr(0, end)));
    text.remove_prefix(end);
    text.remove_prefix(leading_space(text));
    evaluator.charge(64);
  }
  return parts;
}

Value split(Evaluator& evaluator, const Value& self, const Arguments& arguments) {
  const Value* separator = arguments.get(0, "sep");
  int64_t limit = integer_argument(arguments, 1, "maxsplit", -1);
  evaluator.charge(self.string().size());
  if (separator == nullptr || separator->is_none()) return split_on_space(evaluator, self.string(), limit);
  return split_on(evaluator, self.string(), text_of(*separator, "split"), limit);
}

Value rsplit(Evaluator& evaluator, const Value& self, const Arguments& arguments) {
  std::string separator = text_argument(arguments, 0, "sep", " ");
  int64_t limit = integer_argument(arguments, 1, "maxsplit", -1);
  std::vector<Value> parts = split_on(evaluator, self.string(), separator, -1);
  if (limit < 0 || static_cast<int64_t>(parts.size()) <= limit + 1) return parts;
  size_t joined = parts.size() - static_cast<size_t>(limit);
  std::string head = parts[0].string();
  for (size_t i = 1; i < joined; ++i) head += separator + parts[i].string();
  parts.erase(parts.begin(), parts.begin() + static_cast<long>(joined));
  parts.insert(parts.begin(), Value(std::move(head)));
  return parts;
}

Value splitlines(Evaluator& evaluator, const Value& self, const Arguments& arguments) {
  bool keep = flag_argument(arguments, 0, "keepends", false);
  const std::string& text = self.string();
  std::vector<Value> lines;
  for (size_t pos = 0; pos < text.size();) {
    size_t end = std::min(text.find_first_of("\r\n", pos), text.size());
    size_t next = std::min(end + (text.compare(end, 2, "\r\n") == 0 ? 2 : 1), text.size());
    lines.emplace_back(text.substr(pos, (keep ? next : end) - pos));
    pos = next;
    evaluator.charge(64);
  }
  return lines;
}

// startswith and endswith take one string or a tuple of them.
bool any_affix(const Arguments& arguments, const char* what, const std::function<bool(const std::string&)>& matches) {
  const Value* affix = arguments.get(0, "prefix");
  check(affix != nullptr, "{} needs an argument", what);
  if (!affix->is_list()) return matches(text_of(*affix, what));
  return std::any_of(affix->items().begin(), affix->items().end(), [&](const Value& v) { return matches(text_of(v, what)); });
}

Value find(Evaluator& evaluator, const Value& self, const Arguments& arguments, bool last) {
  const std::string& text = self.string();
  std::string wanted = text_argument(arguments, 0, "sub", "");
  evaluator.charge(text.size() / 8);
  size_t hit = last ? text.rfind(wanted) : text.find(wanted, substring(text, 0, integer_argument(arguments, 1, "start", 0)).size());
  return hit == std::string::npos ? int64_t{-1} : static_cast<int64_t>(length_of(std::string_view(text).substr(0, hit)));
}

Value count(const Value& self, const Arguments& arguments) {
  std::string wanted = text_argument(arguments, 0, "sub", "");
  if (wanted.empty()) return static_cast<int64_t>(length_of(self.string())) + 1;
  int64_t n = 0;
  for (size_t pos = self.string().find(wanted); pos != std::string::npos; pos = self.string().find(wanted, pos + wanted.size())) ++n;
  return n;
}

// Each run of letters starts with a capital.
std::string titled(const std::string& text) {
  std::string out;
  bool inside = false;
  for (size_t pos = 0; pos < text.size();) {
    size_t begin = pos;
    char32_t c = next_code_point(text, pos);
    std::string character = text.substr(begin, pos - begin);
    bool cased = to_lower(character) != to_upper(character) || (is_word(c) && c > 0x7F);
    out += !cased ? character : inside ? to_lower(character) : to_upper(character);
    inside = cased;
  }
  return out;
}

Value joined(Evaluator& evaluator, const Value& self, const Arguments& arguments) {
  check(!arguments.positional.empty(), "join needs a list");
  std::string out;
  bool first = true;
  for (const Value& part : evaluator.iterate(arguments.positional[0])) {
    evaluator.charge(self.string().size() + text_of(part, "join").size());
    if (!first) out += self.string();
    first = false;
    out += part.string();
  }
  return out;
}

// "{} {0} {name}".format(…), without format specifications.
Value formatted(Evaluator& evaluator, const Value& self, const Arguments& arguments) {
  const std::string& text = self.string();
  std::string out;
  size_t next = 0;
  for (size_t pos = 0; pos < text.size(); ++pos) {
    char c = text[pos];
    if ((c == '{' || c == '}') && pos + 1 < text.size() && text[pos + 1] == c) {
      out += c;
      ++pos;
    } else if (c == '{') {
      size_t end = text.find('}', pos);
      check(end != std::string::npos, "format: a brace is not closed");
      std::string field = text.substr(pos + 1, end - pos - 1);
      check(field.find_first_of(":!.[") == std::string::npos, "format: the field '{}' is not supported", field);
      bool numbered =
          !field.empty() && field.size() < 6 && std::all_of(field.begin(), field.end(), [](char d) { return d >= '0' && d <= '9'; });
      const Value* value = arguments.get(field.empty() ? next++ : numbered ? std::stoul(field) : arguments.positional.size(), field);
      check(value != nullptr, "format: the field '{}' has no argument", field);
      std::string piece = to_string(*value);
      evaluator.charge(piece.size());
      out += piece;
      pos = end;
    } else {
      out += c;
    }
  }
  return out;
}

template <class Test>
Value all_characters(const Value& self, Test test) {
  const std::string& text = self.string();
  for (size_t pos = 0; pos < text.size();) {
    if (!test(next_code_point(text, pos))) return false;
  }
  return !text.empty();
}

bool is_digit(char32_t c) { return c >= '0' && c <= '9'; }
bool is_letter(char32_t c) { return is_word(c) && !is_digit(c) && c != '_'; }

const Table& string_methods() {
  using E = Evaluator&;
  using V = const Value&;
  using A = const Arguments&;
  static const Table table = {
      {"strip", [](E, V s, A a) -> Value { return stripped(s.string(), a.get(0, "chars"), true, true); }},
      {"lstrip", [](E, V s, A a) -> Value { return stripped(s.string(), a.get(0, "chars"), true, false); }},
      {"rstrip", [](E, V s, A a) -> Value { return stripped(s.string(), a.get(0, "chars"), false, true); }},
      {"upper", [](E, V s, A) -> Value { return to_upper(s.string()); }},
      {"lower", [](E, V s, A) -> Value { return to_lower(s.string()); }},
      {"casefold", [](E, V s, A) -> Value { return to_lower(s.string()); }},
      {"title", [](E, V s, A) -> Value { return titled(s.string()); }},
      {"capitalize", [](E, V s, A) -> Value { return capitalized(s.string()); }},
      {"split", split},
      {"rsplit", rsplit},
      {"splitlines", splitlines},
      {"join", joined},
      {"format", formatted},
      {"startswith",
       [](E, V s, A a) -> Value { return any_affix(a, "startswith", [&](const std::string& x) { return s.string().starts_with(x); }); }},
      {"endswith",
       [](E, V s, A a) -> Value { return any_affix(a, "endswith", [&](const std::string& x) { return s.string().ends_with(x); }); }},
      {"replace",
       [](E e, V s, A a) -> Value {
         return replaced(e, s.string(), text_argument(a, 0, "old", ""), text_argument(a, 1, "new", ""),
                         integer_argument(a, 2, "count", -1));
       }},
      {"removeprefix",
       [](E, V s, A a) -> Value {
         std::string affix = text_argument(a, 0, "prefix", "");
         return s.string().starts_with(affix) ? s.string().substr(affix.size()) : s.string();
       }},
      {"removesuffix",
       [](E, V s, A a) -> Value {
         std::string affix = text_argument(a, 0, "suffix", "");
         return s.string().ends_with(affix) ? s.string().substr(0, s.string().size() - affix.size()) : s.string();
       }},
      {"find", [](E e, V s, A a) -> Value { return find(e, s, a, false); }},
      {"rfind", [](E e, V s, A a) -> Value { return find(e, s, a, true); }},
      {"index",
       [](E e, V s, A a) -> Value {
         Value at = find(e, s, a, false);
         check(at.integer() >= 0, "index: the substring was not found");
         return at;
       }},
      {"count", [](E, V s, A a) -> Value { return count(s, a); }},
      {"isdigit", [](E, V s, A) -> Value { return all_characters(s, is_digit); }},
      {"isnumeric", [](E, V s, A) -> Value { return all_characters(s, is_digit); }},
      {"isalpha", [](E, V s, A) -> Value { return all_characters(s, is_letter); }},
      {"isalnum", [](E, V s, A) -> Value { return all_characters(s, [](char32_t c) { return is_letter(c) || is_digit(c); }); }},
      {"isspace", [](E, V s, A) -> Value { return all_characters(s, is_space); }},
      {"isupper", [](E, V s, A) -> Value { return to_upper(s.string()) == s.string() && to_lower(s.string()) != s.string(); }},
      {"islower", [](E, V s, A) -> Value { return to_lower(s.string()) == s.string() && to_upper(s.string()) != s.string(); }},
  };
  return table;
}

const Table& dict_methods() {
  using E = Evaluator&;
  using V = const Value&;
  using A = const Arguments&;
  static const Table table = {
      {"get",
       [](E, V s, A a) -> Value {
         check(!a.positional.empty(), "get needs a key");
         const Value* found = a.positional[0].is_undefined() ? nullptr : s.dict().find(a.positional[0]);
         const Value* fallback = a.get(1, "default");
         return found != nullptr ? *found : fallback != nullptr ? *fallback : Value();
       }},
      {"items",
       [](E e, V s, A) -> Value {
         std::vector<Value> items;
         e.charge(s.dict().entries.size() * 64);
         for (const auto& [key, value] : s.dict().entries) items.push_back(Value(std::vector<Value>{key, value}, true));
         return items;
       }},
      {"keys", [](E e, V s, A) -> Value { return e.iterate(s); }},
      {"values",
       [](E e, V s, A) -> Value {
         std::vector<Value> items;
         e.charge(s.dict().entries.size() * 32);
         for (const auto& entry : s.dict().entries) items.push_back(entry.second);
         return items;
       }},
      {"copy", [](E, V s, A) -> Value { return s; }},
  };
  return table;
}

const Table& list_methods() {
  using E = Evaluator&;
  using V = const Value&;
  using A = const Arguments&;
  static const Table table = {
      {"index",
       [](E, V s, A a) -> Value {
         for (size_t i = 0; !a.positional.empty() && i < s.items().size(); ++i) {
           if (equal(s.items()[i], a.positional[0])) return static_cast<int64_t>(i);
         }
         fail("index: the value is not in the list");
       }},
      {"count",
       [](E, V s, A a) -> Value {
         check(!a.positional.empty(), "count needs a value");
         return static_cast<int64_t>(std::count_if(s.items().begin(), s.items().end(), [&](V v) { return equal(v, a.positional[0]); }));
       }},
      {"copy", [](E, V s, A) -> Value { return s; }},
  };
  return table;
}

}  // namespace

Callable::Function find_method(const Value& object, const std::string& name) {
  const Table* table = object.is_string() ? &string_methods()
                       : object.is_dict() ? &dict_methods()
                       : object.is_list() ? &list_methods()
                                          : nullptr;
  if (table == nullptr) return nullptr;
  auto found = table->find(name);
  return found == table->end() ? nullptr : found->second;
}

}  // namespace mr::jinja
