// Jinja's filters, with transformers' own tojson.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "core/error.h"
#include "text/jinja/evaluator.h"
#include "text/unicode.h"

namespace mr::jinja {

namespace {

using E = Evaluator&;
using V = const Value&;
using A = const Arguments&;
using Items = std::vector<Value>;

Arguments rest_of(A a, size_t skip) {
  Arguments rest;
  rest.named = a.named;
  if (a.positional.size() > skip) rest.positional.assign(a.positional.begin() + static_cast<long>(skip), a.positional.end());
  return rest;
}

// A dotted path of attributes or indices: "function.name", "0".
Value path(E e, V object, V attribute) {
  if (!attribute.is_string()) return e.item(object, attribute);
  Value value = object;
  std::string_view names = attribute.string();
  while (true) {
    size_t dot = names.find('.');
    std::string name(names.substr(0, dot));
    int64_t number = 0;
    auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
    bool numeric = error == std::errc() && end == name.data() + name.size();
    value = e.item(value, numeric ? Value(number) : Value(name));
    if (dot == std::string_view::npos) return value;
    names.remove_prefix(dot + 1);
  }
}

Value sort_key(E e, V value, const Value* attribute, bool case_sensitive) {
  Value key = attribute == nullptr || attribute->is_none() ? value : path(e, value, *attribute);
  return key.is_string() && !case_sensitive ? Value(to_lower(key.string())) : key;
}

Items sorted(E e, const Items& items, const Value* attribute, bool case_sensitive, bool reverse) {
  std::vector<std::pair<Value, size_t>> order;
  for (V item : items) order.emplace_back(sort_key(e, item, attribute, case_sensitive), order.size());
  e.charge(items.size() * 256);
  std::stable_sort(order.begin(), order.end(),
                   [&](const auto& a, const auto& b) { return reverse ? compare(b.first, a.first) < 0 : compare(a.first, b.first) < 0; });
  Items out;
  for (const auto& entry : order) out.push_back(items[entry.second]);
  return out;
}

Value sort(E e, V v, A a) {
  return sorted(e, e.iterate(v), a.get(2, "attribute"), flag_argument(a, 1, "case_sensitive", false),
                flag_argument(a, 0, "reverse", false));
}

Value dictsort(E e, V v, A a) {
  check(v.is_dict(), "dictsort needs a dict, not a {}", v.type_name());
  Items items;
  for (const auto& [key, value] : v.dict().entries) items.push_back(Value(Items{key, value}, true));
  Value by(int64_t{text_argument(a, 1, "by", "key") == "value" ? 1 : 0});
  return sorted(e, items, &by, flag_argument(a, 0, "case_sensitive", false), flag_argument(a, 2, "reverse", false));
}

Value unique(E e, V v, A a) {
  Items kept, keys;
  for (V item : e.iterate(v)) {
    Value key = sort_key(e, item, a.get(1, "attribute"), flag_argument(a, 0, "case_sensitive", false));
    e.charge(keys.size() * (8 + key.weight()));
    if (contains(Value(keys), key)) continue;
    keys.push_back(key);
    kept.push_back(item);
  }
  return kept;
}

// min and max.
Value extreme(E e, V v, A a, int sign) {
  Items items = e.iterate(v);
  if (items.empty()) return Value::undefined("the extreme of nothing");
  size_t best = 0;
  auto key = [&](size_t i) { return sort_key(e, items[i], a.get(1, "attribute"), flag_argument(a, 0, "case_sensitive", false)); };
  for (size_t i = 1; i < items.size(); ++i) {
    if (compare(key(i), key(best)) * sign > 0) best = i;
  }
  return items[best];
}

Value sum(E e, V v, A a) {
  const Value* attribute = a.get(0, "attribute");
  const Value* start = a.get(1, "start");
  Value total = start != nullptr ? *start : Value(int64_t{0});
  for (V item : e.iterate(v)) total = arithmetic(e, "+", total, attribute && !attribute->is_none() ? path(e, item, *attribute) : item);
  return total;
}

Value join(E e, V v, A a) {
  const Value* separator = a.get(0, "d");
  std::string between = separator == nullptr ? "" : to_string(*separator), out;
  const Value* attribute = a.get(1, "attribute");
  bool first = true;
  for (V item : e.iterate(v)) {
    if (!first) out += between;
    first = false;
    e.charge(item.weight());
    std::string part = to_string(attribute != nullptr ? path(e, item, *attribute) : item);
    e.charge(part.size() + between.size());
    out += part;
  }
  return out;
}

Value map(E e, V v, A a) {
  Items out;
  const Value* attribute = nullptr;
  const Value* fallback = nullptr;
  for (const auto& [name, value] : a.named) {
    if (name == "attribute") attribute = &value;
    if (name == "default") fallback = &value;
  }
  check(attribute != nullptr || !a.positional.empty(), "map needs a filter or an attribute");
  Arguments rest = rest_of(a, 1);
  if (!v.truthy()) return out;  // none too
  for (V item : e.iterate(v)) {
    Value made = attribute != nullptr ? path(e, item, *attribute) : e.filter(text_of(a.positional[0], "map"), item, rest);
    out.push_back(made.is_undefined() && fallback != nullptr ? *fallback : made);
  }
  return out;
}

// select, reject, selectattr and rejectattr.
Value select(E e, V v, A a, bool wanted, bool by_attribute) {
  size_t skip = by_attribute ? 1 : 0;
  check(a.positional.size() >= skip, "selectattr needs an attribute");
  bool has_test = a.positional.size() > skip;
  Arguments rest = rest_of(a, skip + 1);
  Items out;
  if (!v.truthy()) return out;  // none too
  for (V item : e.iterate(v)) {
    Value tested = by_attribute ? path(e, item, a.positional[0]) : item;
    bool passes = has_test ? e.test(text_of(a.positional[skip], "select"), tested, rest) : tested.truthy();
    if (passes == wanted) out.push_back(item);
  }
  return out;
}

Value groupby(E e, V v, A a) {
  const Value* attribute = a.get(0, "attribute");
  check(attribute != nullptr, "groupby needs an attribute");
  Items groups, members;
  Value last;
  auto close = [&] {
    if (!members.empty()) groups.push_back(Value(Items{last, Value(members)}, true));
    members.clear();
  };
  for (V item : sorted(e, e.iterate(v), attribute, false, false)) {
    Value key = path(e, item, *attribute);
    if (!members.empty() && !equal(key, last)) close();
    last = key;
    members.push_back(item);
  }
  close();
  return groups;
}

Value batch(E e, V v, A a) {
  int64_t size = integer_argument(a, 0, "linecount", 1);
  check(size > 0, "batch needs a positive count");
  const Value* fill = a.get(1, "fill_with");
  Items rows, row;
  for (V item : e.iterate(v)) {
    row.push_back(item);
    if (static_cast<int64_t>(row.size()) == size) rows.emplace_back(std::exchange(row, {}));
  }
  if (row.empty()) return rows;
  if (fill != nullptr && !fill->is_none()) {
    e.charge(static_cast<size_t>(size) * 32);
    row.resize(static_cast<size_t>(size), *fill);
  }
  rows.emplace_back(std::move(row));
  return rows;
}

Value ends(E e, V v, bool first) {
  if (v.is_list()) return v.items().empty() ? Value::undefined("an item of an empty list") : first ? v.items().front() : v.items().back();
  Items items = e.iterate(v);
  return items.empty() ? Value::undefined("an item of nothing") : first ? items.front() : items.back();
}

Value length(E, V v, A) {
  if (v.is_string()) return static_cast<int64_t>(length_of(v.string()));
  if (v.is_list()) return static_cast<int64_t>(v.items().size());
  if (v.is_dict()) return static_cast<int64_t>(v.dict().entries.size());
  check(v.is_undefined(), "a {} has no length", v.type_name());
  return int64_t{0};
}

Value reverse(E e, V v, A) {
  Items items = e.iterate(v);
  std::reverse(items.begin(), items.end());
  if (!v.is_string()) return items;
  std::string text;
  for (V item : items) text += item.string();
  return text;
}

Value tojson(E e, V v, A a) {
  JsonStyle style;
  style.ensure_ascii = flag_argument(a, 0, "ensure_ascii", false);
  style.indent = static_cast<int>(std::clamp<int64_t>(integer_argument(a, 1, "indent", -1), -1, 100));
  if (const Value* separators = a.get(2, "separators"); separators != nullptr && separators->is_list() && separators->items().size() == 2) {
    style.item_separator = text_of(separators->items()[0], "separators");
    style.key_separator = text_of(separators->items()[1], "separators");
  }
  style.sort_keys = flag_argument(a, 3, "sort_keys", false);
  e.charge(v.weight() * 8);
  std::string text = to_json(v, style);
  e.charge(text.size());
  return text;
}

Value indent(E e, V v, A a) {
  const Value* width = a.get(0, "width");
  std::string margin;
  if (width != nullptr && width->is_string()) {
    margin = width->string();
  } else {
    margin.assign(static_cast<size_t>(std::clamp<int64_t>(integer_argument(a, 0, "width", 4), 0, 1000)), ' ');
  }
  bool first = flag_argument(a, 1, "first", false), blank = flag_argument(a, 2, "blank", false);
  const std::string text = to_string(v);
  std::string out;
  for (size_t pos = 0, line = 0;; ++line) {
    size_t end = std::min(text.find('\n', pos), text.size());
    e.charge(margin.size() + end - pos + 1);
    if (line > 0) out += '\n';
    if (line == 0 ? first : (blank || end > pos)) out += margin;
    out.append(text, pos, end - pos);
    if (end == text.size()) return out;
    pos = end + 1;
  }
}

std::string title(const std::string& text) {
  std::string out, word;
  auto flush = [&] { out += capitalized(std::exchange(word, {})); };
  for (size_t pos = 0; pos < text.size();) {
    size_t begin = pos;
    char32_t c = next_code_point(text, pos);
    bool boundary = is_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
    if (boundary) flush();
    (boundary ? out : word).append(text, begin, pos - begin);
  }
  flush();
  return out;
}

Value to_int(E, V v, A a) {
  const Value* given = a.get(0, "default");
  Value fallback = given != nullptr ? *given : Value(int64_t{0});
  if (v.is_integral()) return v.integer();
  if (v.is_float()) return std::abs(v.number()) < 9e18 ? Value(static_cast<int64_t>(v.number())) : fallback;
  if (!v.is_string()) return fallback;
  std::string text = stripped(v.string(), nullptr, true, true);
  if (text.starts_with("+")) text.erase(0, 1);
  int64_t number = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number,
                                      static_cast<int>(std::clamp<int64_t>(integer_argument(a, 1, "base", 10), 2, 36)));
  if (error == std::errc() && end == text.data() + text.size()) return number;
  double real = 0;
  auto [real_end, real_error] = std::from_chars(text.data(), text.data() + text.size(), real);
  bool good = real_error == std::errc() && real_end == text.data() + text.size() && std::abs(real) < 9e18;
  return good ? Value(static_cast<int64_t>(real)) : fallback;
}

Value to_float(E, V v, A a) {
  const Value* given = a.get(0, "default");
  if (v.is_number()) return v.number();
  if (v.is_string()) {
    std::string text = stripped(v.string(), nullptr, true, true);
    double real = 0;
    auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), real);
    if (error == std::errc() && end == text.data() + text.size()) return real;
  }
  return given != nullptr ? *given : Value(0.0);
}

Value round(E, V v, A a) {
  check(v.is_number(), "round needs a number, not a {}", v.type_name());
  int64_t precision = std::clamp<int64_t>(integer_argument(a, 0, "precision", 0), -300, 300);
  std::string method = text_argument(a, 1, "method", "common");
  double scale = std::pow(10.0, static_cast<double>(precision)), x = v.number() * scale;
  double rounded = method == "ceil" ? std::ceil(x) : method == "floor" ? std::floor(x) : std::nearbyint(x);
  return rounded / scale;
}

Value absolute(E e, V v, A) {
  check(v.is_number(), "abs needs a number, not a {}", v.type_name());
  return v.number() < 0 ? arithmetic(e, "-", Value(int64_t{0}), v) : v.is_bool() ? Value(v.integer()) : v;
}

Value fallback(E, V v, A a) {
  const Value* given = a.get(0, "default_value");
  bool missing = v.is_undefined() || (flag_argument(a, 1, "boolean", false) && !v.truthy());
  return !missing ? v : given != nullptr ? *given : Value("");
}

Value items(E e, V v, A) {
  if (v.is_undefined()) return Items{};
  check(v.is_dict(), "items needs a dict, not a {}", v.type_name());
  return find_method(v, "items")(e, v, {});
}

Value escape(E e, V v, A) {
  std::string text = to_string(v);
  for (auto [from, to] : {std::pair{"&", "&amp;"}, {">", "&gt;"}, {"<", "&lt;"}, {"'", "&#39;"}, {"\"", "&#34;"}})
    text = replaced(e, text, from, to, -1);
  return text;
}

Value truncate(E, V v, A a) {
  std::string text = to_string(v), tail = text_argument(a, 2, "end", "...");
  int64_t limit = integer_argument(a, 0, "length", 255), leeway = integer_argument(a, 3, "leeway", 5);
  if (static_cast<int64_t>(length_of(text)) <= limit + leeway) return text;
  text = substring(text, 0, std::max<int64_t>(0, limit - static_cast<int64_t>(length_of(tail))));
  if (!flag_argument(a, 1, "killwords", false)) text = text.substr(0, std::min(text.rfind(' '), text.size()));
  return text + tail;
}

using Table = std::unordered_map<std::string, Callable::Function>;

const Table& filter_table() {
  static const Table table = {
      {"abs", absolute},
      {"attr", [](E e, V v, A a) -> Value { return e.attribute(v, text_argument(a, 0, "name", "")); }},
      {"batch", batch},
      {"capitalize", [](E, V v, A) -> Value { return capitalized(to_string(v)); }},
      {"count", length},
      {"d", fallback},
      {"default", fallback},
      {"dictsort", dictsort},
      {"e", escape},
      {"escape", escape},
      {"first", [](E e, V v, A) -> Value { return ends(e, v, true); }},
      {"float", to_float},
      {"groupby", groupby},
      {"indent", indent},
      {"int", to_int},
      {"items", items},
      {"join", join},
      {"last", [](E e, V v, A) -> Value { return ends(e, v, false); }},
      {"length", length},
      {"list", [](E e, V v, A) -> Value { return e.iterate(v); }},
      {"lower", [](E, V v, A) -> Value { return to_lower(to_string(v)); }},
      {"map", map},
      {"max", [](E e, V v, A a) -> Value { return extreme(e, v, a, 1); }},
      {"min", [](E e, V v, A a) -> Value { return extreme(e, v, a, -1); }},
      {"reject", [](E e, V v, A a) -> Value { return select(e, v, a, false, false); }},
      {"rejectattr", [](E e, V v, A a) -> Value { return select(e, v, a, false, true); }},
      {"replace",
       [](E e, V v, A a) -> Value {
         return replaced(e, to_string(v), text_argument(a, 0, "old", ""), text_argument(a, 1, "new", ""),
                         integer_argument(a, 2, "count", -1));
       }},
      {"reverse", reverse},
      {"round", round},
      {"safe", [](E, V v, A) -> Value { return to_string(v); }},
      {"select", [](E e, V v, A a) -> Value { return select(e, v, a, true, false); }},
      {"selectattr", [](E e, V v, A a) -> Value { return select(e, v, a, true, true); }},
      {"sort", sort},
      {"string",
       [](E e, V v, A) -> Value {
         e.charge(v.weight() * 8);
         return to_string(v);
       }},
      {"sum", sum},
      {"title", [](E, V v, A) -> Value { return title(to_string(v)); }},
      {"tojson", tojson},
      {"trim", [](E, V v, A a) -> Value { return stripped(to_string(v), a.get(0, "chars"), true, true); }},
      {"truncate", truncate},
      {"unique", unique},
      {"upper", [](E, V v, A) -> Value { return to_upper(to_string(v)); }},
      {"wordcount",
       [](E e, V v, A) -> Value {
         return static_cast<int64_t>(find_method(Value(""), "split")(e, Value(to_string(v)), {}).items().size());
       }},
  };
  return table;
}

}  // namespace

Callable::Function find_filter(const std::string& name) {
  auto found = filter_table().find(name);
  return found == filter_table().end() ? nullptr : found->second;
}

}  // namespace mr::jinja
