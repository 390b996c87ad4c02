// Python's operators, and the conversions of builtins' arguments.
#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "text/jinja/evaluator.h"

namespace mr::jinja {

namespace {

[[noreturn]] void unsupported(std::string_view op, const Value& a, const Value& b) {
  for (const Value* v : {&a, &b}) {
    if (v->is_undefined()) fail("'{}' is undefined", v->undefined_name());
  }
  fail("'{}' cannot join a {} and a {}", op, a.type_name(), b.type_name());
}

int64_t power(int64_t base, int64_t exponent) {
  int64_t result = 1;
  bool overflow = false;
  for (int64_t i = 0; i < exponent && !overflow; ++i) {
    overflow = __builtin_mul_overflow(result, base, &result);
    if (result == 0 || base == 1) break;
    if (base == -1) return exponent % 2 == 0 ? 1 : -1;
  }
  check(!overflow, "a power is too large");
  return result;
}

Value integers(std::string_view op, int64_t a, int64_t b) {
  int64_t result = 0;
  bool overflow = false;
  if (op == "+") {
    overflow = __builtin_add_overflow(a, b, &result);
  } else if (op == "-") {
    overflow = __builtin_sub_overflow(a, b, &result);
  } else if (op == "*") {
    overflow = __builtin_mul_overflow(a, b, &result);
  } else if (op == "**") {
    if (b < 0) return std::pow(static_cast<double>(a), static_cast<double>(b));
    return power(a, b);
  } else {
    check(b != 0, "division by zero");
    if (op == "/") return static_cast<double>(a) / static_cast<double>(b);
    if (b == -1) return op == "%" ? Value(int64_t{0}) : integers("-", 0, a);
    int64_t quotient = a / b, rest = a % b;
    bool correct = rest != 0 && (rest < 0) != (b < 0);  // Python rounds down
    return op == "//" ? quotient - correct : rest + (correct ? b : 0);
  }
  check(!overflow, "an integer is too large");
  return result;
}

Value reals(std::string_view op, double a, double b) {
  if (op == "+") return a + b;
  if (op == "-") return a - b;
  if (op == "*") return a * b;
  if (op == "**") return std::pow(a, b);
  check(b != 0, "division by zero");
  if (op == "/") return a / b;
  if (op == "//") return std::floor(a / b);
  double rest = std::fmod(a, b);
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

Value repeat(Evaluator& evaluator, const Value& value, int64_t count) {
  size_t n = static_cast<size_t>(std::max<int64_t>(0, clamped(count)));
  if (value.is_string()) {
    Text text(evaluator.meter());
    const std::string_view unit = value.string();
    if (unit.empty()) return text;
    text.reserve(n * unit.size());
    if (unit.size() == 1) {
      text.append(n, unit[0]);
    } else {
      for (size_t i = 0; i < n; ++i) text += unit;
    }
    return text;
  }
  Items items(evaluator.meter());
  size_t unit = value.items().size();
  if (unit > 0) items.reserve(n * unit);
  for (size_t i = 0; unit > 0 && i < n; ++i) items.insert(items.end(), value.items().begin(), value.items().end());
  return Value(std::move(items), value.is_tuple());
}

// One conversion of a number, as C's printf does it: spec is "%", flags, width and precision.
std::string converted(std::string spec, char kind, const Value& value) {
  char buffer[1600];
  if (kind == 'd' || kind == 'i' || kind == 'x') {
    check(!value.is_float() || std::abs(value.number()) < 9e18, "the format '{}{}' needs a smaller number", spec, kind);
    long long number = value.is_float() ? static_cast<long long>(value.number()) : value.integer();
    snprintf(buffer, sizeof buffer, (spec + (kind == 'x' ? "llx" : "lld")).c_str(), number);
  } else {
    snprintf(buffer, sizeof buffer, (spec + kind).c_str(), value.number());
  }
  return buffer;
}

// '%s and %5.2f' % (a, b)
Value percent(Evaluator& evaluator, std::string_view format, const Value& values) {
  std::span<const Value> arguments = values.is_list() && values.is_tuple() ? values.items() : std::span(&values, 1);
  Text out(evaluator.meter());
  size_t next = 0;
  evaluator.meter().work(format.size() * 2);
  for (size_t pos = 0; pos < format.size(); ++pos) {
    if (format[pos] != '%') {
      out += format[pos];
      continue;
    }
    size_t begin = pos++;
    while (pos < format.size() && pos - begin < 8 && std::string_view("-+ #0123456789.").find(format[pos]) != std::string_view::npos) ++pos;
    check(pos < format.size() && pos - begin < 8, "the format '{}' is incomplete", format);
    char kind = format[pos];
    if (kind == '%') {
      out += '%';
      continue;
    }
    check(next < arguments.size(), "the format '{}' has too few arguments", format);
    const Value& value = arguments[next++];
    std::string spec(format.substr(begin, pos - begin));
    check(spec.find_first_of("123456789") == std::string::npos || spec.size() < 5, "the format '{}' is too wide", spec);
    if (kind == 's' || kind == 'r') {
      check(spec.size() == 1, "the format '{}{}' is not supported", spec, kind);
      (kind == 's' ? print : print_repr)(out, value);
    } else {
      check(std::string_view("dixfge").find(kind) != std::string_view::npos, "the format '{}' is not supported", format);
      check(value.is_number(), "the format '{}{}' needs a number, not a {}", spec, kind, value.type_name());
      evaluator.meter().work(4000);
      out += converted(spec, kind, value);
    }
  }
  bool subscripted = values.is_dict() || (values.is_list() && !values.is_tuple());  // Python does not require these to be used
  check(next == arguments.size() || subscripted, "the format '{}' has too many arguments", format);
  return out;
}

}  // namespace

Value arithmetic(Evaluator& evaluator, std::string_view op, const Value& a, const Value& b) {
  if (op == "~" || (op == "+" && a.is_string() && b.is_string())) {
    Text text(evaluator.meter());
    if (a.is_string() && b.is_string()) text.reserve(a.string().size() + b.string().size());
    print(text, a);
    print(text, b);
    return text;
  }
  if (a.is_number() && b.is_number()) {
    return a.is_float() || b.is_float() ? reals(op, a.number(), b.number()) : integers(op, a.integer(), b.integer());
  }
  if (op == "+" && a.is_list() && b.is_list() && a.is_tuple() == b.is_tuple()) {
    Items items(evaluator.meter());
    items.reserve(a.items().size() + b.items().size());
    items.insert(items.end(), a.items().begin(), a.items().end());
    items.insert(items.end(), b.items().begin(), b.items().end());
    return Value(std::move(items), a.is_tuple());
  }
  if (op == "*" && (a.is_string() || a.is_list()) && b.is_integral()) return repeat(evaluator, a, b.integer());
  if (op == "*" && (b.is_string() || b.is_list()) && a.is_integral()) return repeat(evaluator, b, a.integer());
  if (op == "%" && a.is_string()) return percent(evaluator, a.string(), b);
  unsupported(op, a, b);
}

std::string_view text_of(Evaluator& evaluator, const Value& value, const char* what) {
  if (value.is_undefined()) fail("'{}' is undefined", value.undefined_name());
  check(value.is_string(), "{} needs a string, not a {}", what, value.type_name());
  evaluator.meter().work(16 + value.string().size());
  return value.string();
}

int64_t integer_of(const Value& value, const char* what) {
  if (value.is_undefined()) fail("'{}' is undefined", value.undefined_name());
  check(value.is_integral(), "{} needs an integer, not a {}", what, value.type_name());
  return value.integer();
}

int64_t clamped(int64_t value) {
  constexpr int64_t most = int64_t{1} << 32;  // more items than any value has; the product of two does not wrap
  return std::clamp(value, -most, most);
}

std::string_view text_argument(Evaluator& evaluator, const Arguments& arguments, size_t position, const char* name, const char* fallback) {
  const Value* value = arguments.get(position, name);
  return value == nullptr ? std::string_view(fallback) : text_of(evaluator, *value, name);
}

int64_t integer_argument(const Arguments& arguments, size_t position, const char* name, int64_t fallback) {
  const Value* value = arguments.get(position, name);
  return clamped(value == nullptr || value->is_none() ? fallback : integer_of(*value, name));
}

bool flag_argument(const Arguments& arguments, size_t position, const char* name, bool fallback) {
  const Value* value = arguments.get(position, name);
  return value == nullptr ? fallback : value->truthy();
}

}  // namespace mr::jinja
