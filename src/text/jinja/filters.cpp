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

Arguments rest_of(E e, A a, size_t skip) {
  Arguments rest(e.meter());
  rest.named.assign(a.named.begin(), a.named.end());
  if (a.positional.size() > skip) rest.positional.assign(a.positional.begin() + static_cast<long>(skip), a.positional.end());
  return rest;
}

bool given(const Value* argument) { return argument != nullptr && !argument->is_none(); }

// A dotted path of attributes or indices: "function.name", "0".
Value path(E e, V object, V attribute) {
  if (!attribute.is_string()) return e.item(object, attribute);
  Value value = object;
  std::string_view names = text_of(e, attribute, "an attribute");
  while (true) {
    size_t dot = names.find('.');
    std::string_view name = names.substr(0, dot);
    int64_t number = 0;
    auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
    bool numeric = error == std::errc() && end == name.data() + name.size();
    value = e.item(value, numeric ? Value(number) : Value::text(e.meter(), name));
    if (dot == std::string_view::npos) return value;
    names.remove_prefix(dot + 1);
  }
}

Value sort_key(E e, V value, const Value* attribute, bool case_sensitive) {
  Value key = given(attribute) ? path(e, value, *attribute) : value;
  return key.is_string() && !case_sensitive ? Value(lower(e, key.string())) : key;
}

// A sorted list; comparisons charge themselves.
Value sorted(E e, std::span<const Value> items, const Value* attribute, bool case_sensitive, bool reverse) {
  using Place = std::pair<Value, size_t>;
  std::vector<Place, Counted<Place>> order(e.meter());
  order.reserve(items.size() + items.size() / 2);  // the sort's own scratch is half as large
  for (V item : items) order.emplace_back(sort_key(e, item, attribute, case_sensitive), order.size());
  std::stable_sort(order.begin(), order.end(), [&](const Place& a, const Place& b) {
    return reverse ? compare(e.meter(), b.first, a.first) < 0 : compare(e.meter(), a.first, b.first) < 0;
  });
  Items out(e.meter());
  out.reserve(items.size());
  for (const Place& place : order) out.push_back(items[place.second]);
  return out;
}

Value sort(E e, V v, A a) {
  Value items = e.iterate(v);
  return sorted(e, items.items(), a.get(2, "attribute"), flag_argument(a, 1, "case_sensitive", false),
                flag_argument(a, 0, "reverse", false));
}

Value dictsort(E e, V v, A a) {
  check(v.is_dict(), "dictsort needs a dict, not a {}", v.type_name());
  Items items(e.meter());
  for (const auto& [key, value] : v.dict().entries) items.push_back(pair_of(e, key, value));
  Value by(int64_t{text_argument(e, a, 1, "by", "key") == "value" ? 1 : 0});
  return sorted(e, items, &by, flag_argument(a, 0, "case_sensitive", false), flag_argument(a, 2, "reverse", false));
}

Value unique(E e, V v, A a) {
  const Value* attribute = a.get(1, "attribute");
  bool case_sensitive = flag_argument(a, 0, "case_sensitive", false);
  Value items = e.iterate(v);
  Items kept(e.meter());
  Dict seen(e.meter());
  for (V item : items.items()) {
    Value key = sort_key(e, item, attribute, case_sensitive);
    if (seen.find(e.meter(), key) != nullptr) continue;
    seen.set(key, Value());
    kept.push_back(item);
  }
  return kept;
}

// min and max.
Value extreme(E e, V v, A a, int sign) {
  Value items = e.iterate(v), best, best_key;
  if (items.items().empty()) return Value::undefined(e.meter(), "the extreme of nothing");
  const Value* attribute = a.get(1, "attribute");
  bool first = true, case_sensitive = flag_argument(a, 0, "case_sensitive", false);
  for (V item : items.items()) {
    Value key = sort_key(e, item, attribute, case_sensitive);
    int order = first ? sign : compare(e.meter(), key, best_key);
    first = false;
    if (order == 0 || (order > 0) != (sign > 0)) continue;  // the first of equals stays
    best = item;
    best_key = std::move(key);
  }
  return best;
}

Value sum(E e, V v, A a) {
  const Value* attribute = a.get(0, "attribute");
  const Value* start = a.get(1, "start");
  Value items = e.iterate(v), total = start != nullptr ? *start : Value(int64_t{0});
  for (V item : items.items()) total = arithmetic(e, "+", total, given(attribute) ? path(e, item, *attribute) : item);
  return total;
}

Value join(E e, V v, A a) {
  const Value* separator = a.get(0, "d");
  Value between = separator == nullptr ? Value::text(e.meter(), "") : as_string(e, *separator), items = e.iterate(v);
  const Value* attribute = a.get(1, "attribute");
  Text out(e.meter());
  bool first = true;
  for (V item : items.items()) {
    if (!first) out += between.string();
    first = false;
    print(out, attribute != nullptr ? path(e, item, *attribute) : item);
  }
  return out;
}

Value map(E e, V v, A a) {
  const Value* attribute = nullptr;
  const Value* fallback = nullptr;
  for (const auto& [name, value] : a.named) {
    if (name == "attribute") attribute = &value;
    if (name == "default") fallback = &value;
  }
  check(attribute != nullptr || !a.positional.empty(), "map needs a filter or an attribute");
  Arguments rest = rest_of(e, a, 1);
  Items out(e.meter());
  if (!v.truthy()) return out;  // none too
  Value items = e.iterate(v);
  for (V item : items.items()) {
    Value made = attribute != nullptr ? path(e, item, *attribute) : e.filter(text_of(e, a.positional[0], "map"), item, rest);
    out.push_back(made.is_undefined() && fallback != nullptr ? *fallback : std::move(made));
  }
  return out;
}

// select, reject, selectattr and rejectattr.
Value select(E e, V v, A a, bool wanted, bool by_attribute) {
  size_t skip = by_attribute ? 1 : 0;
  check(a.positional.size() >= skip, "selectattr needs an attribute");
  bool has_test = a.positional.size() > skip;
  Arguments rest = rest_of(e, a, skip + 1);
  Items out(e.meter());
  if (!v.truthy()) return out;  // none too
  Value items = e.iterate(v);
  for (V item : items.items()) {
    Value tested = by_attribute ? path(e, item, a.positional[0]) : item;
    bool passes = has_test ? e.test(text_of(e, a.positional[skip], "select"), tested, rest) : tested.truthy();
    if (passes == wanted) out.push_back(item);
  }
  return out;
}

Value groupby(E e, V v, A a) {
  const Value* attribute = a.get(0, "attribute");
  check(attribute != nullptr, "groupby needs an attribute");
  Value all = e.iterate(v), in_order = sorted(e, all.items(), attribute, false, false), last;
  Items groups(e.meter()), members(e.meter());
  auto close = [&] {
    if (!members.empty()) groups.push_back(pair_of(e, last, Value(std::exchange(members, Items(e.meter())))));
  };
  for (V item : in_order.items()) {
    Value key = path(e, item, *attribute);
    if (!members.empty() && !equal(e.meter(), key, last)) close();
    last = std::move(key);
    members.push_back(item);
  }
  close();
  return groups;
}

Value batch(E e, V v, A a) {
  int64_t size = integer_argument(a, 0, "linecount", 1);
  check(size > 0, "batch needs a positive count");
  const Value* fill = a.get(1, "fill_with");
  Value items = e.iterate(v);
  Items rows(e.meter()), row(e.meter());
  auto close = [&] { rows.push_back(Value(std::exchange(row, Items(e.meter())))); };
  for (V item : items.items()) {
    row.push_back(item);
    if (static_cast<int64_t>(row.size()) == size) close();
  }
  if (row.empty()) return rows;
  if (given(fill)) row.resize(static_cast<size_t>(size), *fill);
  close();
  return rows;
}

Value ends(E e, V v, bool first) {
  if (v.is_string()) return e.item(v, Value(int64_t{first ? 0 : -1}));
  Value items = e.iterate(v);
  if (items.items().empty()) return Value::undefined(e.meter(), "an item of nothing");
  return first ? items.items().front() : items.items().back();
}

Value length(E e, V v, A) {
  if (v.is_string()) return static_cast<int64_t>(length_of(e.meter(), v.string()));
  if (v.is_list()) return static_cast<int64_t>(v.items().size());
  if (v.is_dict()) return static_cast<int64_t>(v.dict().entries.size());
  check(v.is_undefined(), "a {} has no length", v.type_name());
  return int64_t{0};
}

Value reverse(E e, V v, A) {
  if (v.is_string()) {
    std::string_view text = text_of(e, v, "reverse");
    Text out(e.meter());
    out.reserve(text.size());
    for (size_t end = text.size(); end > 0;) {
      size_t begin = end - 1;
      while (begin > 0 && (text[begin] & 0xC0) == 0x80) --begin;
      out += text.substr(begin, end - begin);
      end = begin;
    }
    return out;
  }
  Value all = e.iterate(v);
  return Items(all.items().rbegin(), all.items().rend(), e.meter());
}

Value tojson(E e, V v, A a) {
  JsonStyle style;
  style.ensure_ascii = flag_argument(a, 0, "ensure_ascii", false);
  style.indent = static_cast<int>(std::clamp<int64_t>(integer_argument(a, 1, "indent", -1), -1, 100));
  if (const Value* separators = a.get(2, "separators"); separators != nullptr && separators->is_list() && separators->items().size() == 2) {
    style.item_separator = text_of(e, separators->items()[0], "separators");
    style.key_separator = text_of(e, separators->items()[1], "separators");
  }
  style.sort_keys = flag_argument(a, 3, "sort_keys", false);
  return to_json(e.meter(), v, style);
}

Value indent(E e, V v, A a) {
  const Value* width = a.get(0, "width");
  Text margin(e.meter());
  if (width != nullptr && width->is_string()) {
    margin = width->string();
  } else {
    margin.assign(static_cast<size_t>(std::clamp<int64_t>(integer_argument(a, 0, "width", 4), 0, 1000)), ' ');
  }
  bool first = flag_argument(a, 1, "first", false), blank = flag_argument(a, 2, "blank", false);
  Value printed = as_string(e, v);
  std::string_view text = text_of(e, printed, "indent");
  Text out(e.meter());
  for (size_t pos = 0, line = 0;; ++line) {
    size_t end = std::min(text.find('\n', pos), text.size());
    if (line > 0) out += '\n';
    if (line == 0 ? first : (blank || end > pos)) out += margin;
    out.append(text.substr(pos, end - pos));
    if (end == text.size()) return out;
    pos = end + 1;
  }
}

Value title(E e, V v, A) {
  Value printed = as_string(e, v);
  std::string_view text = text_of(e, printed, "title");
  e.meter().work(text.size() * 8);
  Text out(e.meter());
  size_t word = 0;  // where it begins
  auto flush = [&](size_t end) { out += capitalized(e, text.substr(word, end - word)); };
  for (size_t pos = 0; pos < text.size();) {
    size_t begin = pos;
    char32_t c = next_code_point(text, pos);
    if (!is_space(c) && c != '-' && c != '(' && c != '{' && c != '[' && c != '<') continue;
    flush(begin);
    out += text.substr(begin, pos - begin);
    word = pos;
  }
  flush(text.size());
  return out;
}

Value to_int(E e, V v, A a) {
  const Value* otherwise = a.get(0, "default");
  Value fallback = otherwise != nullptr ? *otherwise : Value(int64_t{0});
  if (v.is_integral()) return v.integer();
  if (v.is_float()) return std::abs(v.number()) < 9e18 ? Value(static_cast<int64_t>(v.number())) : fallback;
  if (!v.is_string()) return fallback;
  std::string_view text = stripped(e, v.string(), nullptr, true, true);
  if (text.starts_with("+")) text.remove_prefix(1);
  e.meter().work(text.size() * 4);
  int64_t number = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number,
                                      static_cast<int>(std::clamp<int64_t>(integer_argument(a, 1, "base", 10), 2, 36)));
  if (error == std::errc() && end == text.data() + text.size()) return number;
  double real = 0;
  auto [real_end, real_error] = std::from_chars(text.data(), text.data() + text.size(), real);
  bool good = real_error == std::errc() && real_end == text.data() + text.size() && std::abs(real) < 9e18;
  return good ? Value(static_cast<int64_t>(real)) : fallback;
}

Value to_float(E e, V v, A a) {
  const Value* otherwise = a.get(0, "default");
  if (v.is_number()) return v.number();
  if (v.is_string()) {
    std::string_view text = stripped(e, v.string(), nullptr, true, true);
    e.meter().work(text.size() * 4);
    double real = 0;
    auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), real);
    if (error == std::errc() && end == text.data() + text.size()) return real;
  }
  return otherwise != nullptr ? *otherwise : Value(0.0);
}

Value round(E e, V v, A a) {
  check(v.is_number(), "round needs a number, not a {}", v.type_name());
  int64_t precision = std::clamp<int64_t>(integer_argument(a, 0, "precision", 0), -300, 300);
  std::string_view method = text_argument(e, a, 1, "method", "common");
  double scale = std::pow(10.0, static_cast<double>(precision)), x = v.number() * scale;
  double rounded = method == "ceil" ? std::ceil(x) : method == "floor" ? std::floor(x) : std::nearbyint(x);
  return rounded / scale;
}

Value absolute(E e, V v, A) {
  check(v.is_number(), "abs needs a number, not a {}", v.type_name());
  return v.number() < 0 ? arithmetic(e, "-", Value(int64_t{0}), v) : v.is_bool() ? Value(v.integer()) : v;
}

Value fallback(E e, V v, A a) {
  const Value* otherwise = a.get(0, "default_value");
  bool missing = v.is_undefined() || (flag_argument(a, 1, "boolean", false) && !v.truthy());
  return !missing ? v : otherwise != nullptr ? *otherwise : Value::text(e.meter(), "");
}

Value items(E e, V v, A) {
  if (v.is_undefined()) return Items(e.meter());
  check(v.is_dict(), "items needs a dict, not a {}", v.type_name());
  return find_method(v, "items")->second(e, v, Arguments(e.meter()));
}

Value escape(E e, V v, A) {
  Value printed = as_string(e, v);
  std::string_view text = text_of(e, printed, "escape");
  static constexpr std::string_view special = "&><'\"";
  static constexpr std::string_view names[] = {"&amp;", "&gt;", "&lt;", "&#39;", "&#34;"};
  e.meter().work(text.size() * 4);
  Text out(e.meter());
  for (size_t pos = 0; pos < text.size(); ++pos) {
    size_t known = special.find(text[pos]);
    out += known == std::string_view::npos ? text.substr(pos, 1) : names[known];
  }
  return out;
}

Value truncate(E e, V v, A a) {
  Value printed = as_string(e, v);
  std::string_view text = printed.string(), tail = text_argument(e, a, 2, "end", "...");
  int64_t limit = integer_argument(a, 0, "length", 255), leeway = integer_argument(a, 3, "leeway", 5);
  if (static_cast<int64_t>(length_of(e.meter(), text)) <= limit + leeway) return printed;
  text = substring(e.meter(), text, 0, std::max<int64_t>(0, limit - static_cast<int64_t>(length_of(e.meter(), tail))));
  if (!flag_argument(a, 1, "killwords", false)) text = text.substr(0, std::min(text.rfind(' '), text.size()));
  Text out(text, e.meter());
  out += tail;
  return out;
}

Value trim(E e, V v, A a) {
  Value printed = as_string(e, v);
  return Value::text(e.meter(), stripped(e, printed.string(), a.get(0, "chars"), true, true));
}

Value wordcount(E e, V v, A) {
  return static_cast<int64_t>(
      find_method(Value::text(e.meter(), ""), "split")->second(e, as_string(e, v), Arguments(e.meter())).items().size());
}

}  // namespace

const Builtins& filters() {
  static const Builtins table = {
      {"abs", absolute},
      {"attr", [](E e, V v, A a) -> Value { return e.attribute(v, text_argument(e, a, 0, "name", "")); }},
      {"batch", batch},
      {"capitalize", [](E e, V v, A) -> Value { return capitalized(e, as_string(e, v).string()); }},
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
      {"lower", [](E e, V v, A) -> Value { return lower(e, as_string(e, v).string()); }},
      {"map", map},
      {"max", [](E e, V v, A a) -> Value { return extreme(e, v, a, 1); }},
      {"min", [](E e, V v, A a) -> Value { return extreme(e, v, a, -1); }},
      {"reject", [](E e, V v, A a) -> Value { return select(e, v, a, false, false); }},
      {"rejectattr", [](E e, V v, A a) -> Value { return select(e, v, a, false, true); }},
      {"replace",
       [](E e, V v, A a) -> Value {
         return replaced(e, as_string(e, v).string(), text_argument(e, a, 0, "old", ""), text_argument(e, a, 1, "new", ""),
                         integer_argument(a, 2, "count", -1));
       }},
      {"reverse", reverse},
      {"round", round},
      {"safe", [](E e, V v, A) -> Value { return as_string(e, v); }},
      {"select", [](E e, V v, A a) -> Value { return select(e, v, a, true, false); }},
      {"selectattr", [](E e, V v, A a) -> Value { return select(e, v, a, true, true); }},
      {"sort", sort},
      {"string", [](E e, V v, A) -> Value { return as_string(e, v); }},
      {"sum", sum},
      {"title", title},
      {"tojson", tojson},
      {"trim", trim},
      {"truncate", truncate},
      {"unique", unique},
      {"upper", [](E e, V v, A) -> Value { return upper(e, as_string(e, v).string()); }},
      {"wordcount", wordcount},
  };
  return table;
}

}  // namespace mr::jinja
