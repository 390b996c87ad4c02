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
using Table = std::unordered_map<std::string, Callable::Function>;

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
  std::vector<Value> out;
  for (int64_t i = begin; step > 0 ? i < end : i > end;) {
    check(out.size() < 100'000, "range is longer than 100000");
    out.emplace_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  e.charge(out.size() * 32);
  return out;
}

Value dict(E, V, A a) {
  auto made = std::make_shared<Dict>();
  if (!a.positional.empty()) {
    check(a.positional[0].is_dict(), "dict needs a dict, not a {}", a.positional[0].type_name());
    *made = a.positional[0].dict();
  }
  for (const auto& [name, value] : a.named) made->set(Value(name), value);
  return std::shared_ptr<const Dict>(std::move(made));
}

Value make_namespace(E e, V, A a) {
  Value made = e.make_namespace();
  auto& attributes = made.space().attributes;
  if (!a.positional.empty() && a.positional[0].is_dict()) {
    for (const auto& [key, value] : a.positional[0].dict().entries) attributes.emplace_back(to_string(key), value);
  }
  for (const auto& [name, value] : a.named) attributes.emplace_back(name, value);
  return made;
}

Value raise(E, V, A a) {
  fail("{}", a.positional.empty() ? std::string("the template refuses this conversation") : to_string(a.positional[0]));
}

Value time_now(E, V, A a) {
  std::string format = text_argument(a, 0, "format", "%Y-%m-%d");
  check(format.size() < 200, "strftime_now needs a shorter format");
  std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  char text[1024];
  return std::string(text, std::strftime(text, sizeof text, format.c_str(), &local));
}

Value* find_attribute(V self, const char* name) {
  for (auto& [key, value] : self.space().attributes) {
    if (key == name) return &value;
  }
  return nullptr;
}

Value loop_cycle(E, V self, A a) {
  check(!a.positional.empty(), "loop.cycle needs values");
  return a.positional[static_cast<size_t>(find_attribute(self, "index0")->integer()) % a.positional.size()];
}

// True unless the arguments equal those of the last call in this loop.
Value loop_changed(E e, V self, A a) {
  Value now(a.positional);
  e.charge(now.weight());
  Value* last = find_attribute(self, " changed");
  bool changed = last == nullptr || !equal(*last, now);
  if (last == nullptr) {
    self.space().attributes.emplace_back(" changed", now);
  } else {
    *last = now;
  }
  return changed;
}

const Table& function_table() {
  static const Table table = {{"range", range},
                              {"dict", dict},
                              {"namespace", make_namespace},
                              {"raise_exception", raise},
                              {"strftime_now", time_now},
                              {"loop.cycle", loop_cycle},
                              {"loop.changed", loop_changed}};
  return table;
}

template <int low, int high>
Value ordered(E, V v, A a) {
  int order = compare(v, operand(a));
  int sign = order < 0 ? -1 : order > 0;
  return sign >= low && sign <= high;
}

const Table& test_table() {
  static constexpr auto equal_to = [](E e, V v, A a) -> Value {
    e.charge(v.weight());
    return equal(v, operand(a));
  };
  static constexpr auto different = [](E e, V v, A a) -> Value {
    e.charge(v.weight());
    return !equal(v, operand(a));
  };
  static const Table table = {
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
      {"odd", [](E e, V v, A) -> Value { return arithmetic(e, "%", v, Value(int64_t{2})).number() == 1; }},
      {"even", [](E e, V v, A) -> Value { return arithmetic(e, "%", v, Value(int64_t{2})).number() == 0; }},
      {"divisibleby", [](E e, V v, A a) -> Value { return arithmetic(e, "%", v, operand(a)).number() == 0; }},
      {"lower", [](E, V v, A) -> Value { return to_lower(to_string(v)) == to_string(v) && to_upper(to_string(v)) != to_string(v); }},
      {"upper", [](E, V v, A) -> Value { return to_upper(to_string(v)) == to_string(v) && to_lower(to_string(v)) != to_string(v); }},
      {"in", [](E, V v, A a) -> Value { return contains(operand(a), v); }},
      {"sameas", [](E, V v, A a) -> Value { return std::string_view(v.type_name()) == operand(a).type_name() && equal(v, operand(a)); }},
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

}  // namespace

Callable::Function find_function(const std::string& name) {
  auto found = function_table().find(name);
  return found == function_table().end() ? nullptr : found->second;
}

Callable::Function find_test(const std::string& name) {
  auto found = test_table().find(name);
  return found == test_table().end() ? nullptr : found->second;
}

}  // namespace mr::jinja
