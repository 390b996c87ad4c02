// Jinja's tests and global functions, with those that transformers adds.
#include <ctime>

#include "core/error.h"
#include "text/jinja/evaluator.h"
#include "text/unicode.h"

namespace mr::jinja {

namespace {

using E = Evaluator&;
using V = const Value&;
using A = const Arguments&;

const Value& operand(A a) {
  check(!a.positional.empty(), "a test lacks its argument");
  return a.positional[0];
}

Value range(E e, V, A a) {
  check(!a.positional.empty() && a.positional.size() <= 3, "range takes one to three arguments");
  int64_t numbers[3] = {0, 0, 1};
  for (size_t i = 0; i < a.positional.size(); ++i) numbers[i] = integer_of(a.positional[i], "range");
  auto [begin, end, step] = numbers;
  if (a.positional.size() == 1) std::swap(begin, end);
  check(step != 0, "range needs a step that is not 0");
  Items out(e.meter());
  for (int64_t i = begin; step > 0 ? i < end : i > end;) {
    check(out.size() < 100'000, "range is longer than 100000");
    out.emplace_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return out;
}

Value dict(E e, V, A a) {
  Dict made(e.meter());
  if (!a.positional.empty()) {
    check(a.positional[0].is_dict(), "dict needs a dict, not a {}", a.positional[0].type_name());
    for (const auto& [key, value] : a.positional[0].dict().entries) made.set(key, value);
  }
  for (const auto& [name, value] : a.named) made.set(Value::text(e.meter(), name), value);
  return made;
}

Value make_namespace(E e, V, A a) {
  Value made = e.make_namespace();
  auto& attributes = made.space().attributes;
  if (!a.positional.empty() && a.positional[0].is_dict()) {
    for (const auto& [key, value] : a.positional[0].dict().entries)
      attributes.insert_or_assign(Text(as_string(e, key).string(), e.meter()), value);
  }
  for (const auto& [name, value] : a.named) attributes.insert_or_assign(Text(name, e.meter()), value);
  return made;
}

Value raise(E e, V, A a) {
  if (a.positional.empty()) fail("the template refuses this conversation");
  fail("{}", as_string(e, a.positional[0]).string());
}

Value time_now(E e, V, A a) {
  std::string format(text_argument(e, a, 0, "format", "%Y-%m-%d"));
  check(format.size() < 200, "strftime_now needs a shorter format");
  e.meter().work(40 * (format.size() + 200));  // a part of the format takes a microsecond at worst
  std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  char text[1024];
  return Value::text(e.meter(), std::string_view(text, std::strftime(text, sizeof text, format.c_str(), &local)));
}

double rest_of_division(E e, V v, V by) {
  check(v.is_number() && by.is_number(), "a {} cannot be divided by a {}", v.type_name(), by.type_name());
  return arithmetic(e, "%", v, by).number();
}

template <int low, int high>
Value ordered(E e, V v, A a) {
  int order = compare(e.meter(), v, operand(a));
  int sign = order < 0 ? -1 : order > 0;
  return sign >= low && sign <= high;
}

}  // namespace

const Builtins& functions() {
  static const Builtins table = {
      {"range", range}, {"dict", dict}, {"namespace", make_namespace}, {"raise_exception", raise}, {"strftime_now", time_now}};
  return table;
}

const Builtins& tests() {
  static constexpr auto equal_to = [](E e, V v, A a) -> Value { return equal(e.meter(), v, operand(a)); };
  static constexpr auto different = [](E e, V v, A a) -> Value { return !equal(e.meter(), v, operand(a)); };
  static constexpr auto same_as = [](E e, V v, A a) -> Value {
    return std::string_view(v.type_name()) == operand(a).type_name() && equal(e.meter(), v, operand(a));
  };
  static const Builtins table = {
      {"defined", [](E, V v, A) -> Value { return !v.is_undefined(); }},
      {"undefined", [](E, V v, A) -> Value { return v.is_undefined(); }},
      {"none", [](E, V v, A) -> Value { return v.is_none(); }},
      {"string", [](E, V v, A) -> Value { return v.is_string(); }},
      {"mapping", [](E, V v, A) -> Value { return v.is_dict(); }},
      {"iterable", [](E, V v, A) -> Value { return v.is_string() || v.is_list() || v.is_dict() || v.is_undefined(); }},
      {"sequence", [](E, V v, A) -> Value { return v.is_string() || v.is_list() || v.is_dict() || v.is_undefined(); }},
      {"number", [](E, V v, A) -> Value { return v.is_number(); }},
      {"integer", [](E, V v, A) -> Value { return v.is_int(); }},
      {"float", [](E, V v, A) -> Value { return v.is_float(); }},
      {"boolean", [](E, V v, A) -> Value { return v.is_bool(); }},
      {"true", [](E, V v, A) -> Value { return v.is_bool() && v.integer() != 0; }},
      {"false", [](E, V v, A) -> Value { return v.is_bool() && v.integer() == 0; }},
      {"callable", [](E, V v, A) -> Value { return v.is_callable(); }},
      {"odd", [](E e, V v, A) -> Value { return rest_of_division(e, v, Value(int64_t{2})) == 1; }},
      {"even", [](E e, V v, A) -> Value { return rest_of_division(e, v, Value(int64_t{2})) == 0; }},
      {"divisibleby", [](E e, V v, A a) -> Value { return rest_of_division(e, v, operand(a)) == 0; }},
      {"lower", [](E e, V v, A) -> Value { return is_cased(e, as_string(e, v).string(), false); }},
      {"upper", [](E e, V v, A) -> Value { return is_cased(e, as_string(e, v).string(), true); }},
      {"in", [](E e, V v, A a) -> Value { return contains(e.meter(), operand(a), v); }},
      {"sameas", same_as},
      {"equalto", equal_to},
      {"eq", equal_to},
      {"==", equal_to},
      {"ne", different},
      {"!=", different},
      {"lt", ordered<-1, -1>},
      {"lessthan", ordered<-1, -1>},
      {"<", ordered<-1, -1>},
      {"le", ordered<-1, 0>},
      {"<=", ordered<-1, 0>},
      {"gt", ordered<1, 1>},
      {"greaterthan", ordered<1, 1>},
      {">", ordered<1, 1>},
      {"ge", ordered<0, 1>},
      {">=", ordered<0, 1>},
  };
  return table;
}

}  // namespace mr::jinja
