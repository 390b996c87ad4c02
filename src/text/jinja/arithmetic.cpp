// Python's operators, and what builtins ask of their arguments.
#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "text/jinja/evaluator.h"
#include "text/unicode.h"

namespace mr::jinja {

namespace {

[[noreturn]] void unsupported(const std::string& op, const Value& a, const Value& b) {
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

Value integers(const std::string& op, int64_t a, int64_t b) {
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

Value reals(const std::string& op, double a, double b) {
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
  size_t n = count > 0 ? static_cast<size_t>(count) : 0, unit = value.is_string() ? value.string().size() : value.items().size() * 32;
  evaluator.charge(unit == 0 ? 0 : n > (size_t{1} << 40) / unit ? size_t{1} << 40 : n * unit);
  if (unit == 0) n = 0;
  if (value.is_string()) {
    std::string text;
    for (size_t i = 0; i < n; ++i) text += value.string();
    return text;
  }
  std::vector<Value> items;
  for (size_t i = 0; i < n; ++i) items.insert(items.end(), value.items().begin(), value.items().end());
  return Value(std::move(items), value.is_tuple());
}

// '%s and %5.2f' % (a, b)
Value percent(Evaluator& evaluator, const std::string& format, const Value& values) {
  std::vector<Value> arguments = values.is_list() && values.is_tuple() ? values.items() : std::vector<Value>{values};
  std::string out;
  size_t next = 0;
  for (size_t pos = 0; pos < format.size(); ++pos) {
    if (format[pos] != '%') {
      out += format[pos];
      continue;
    }
    size_t begin = pos++;
    while (pos < format.size() && std::string_view("-+ #0123456789.").find(format[pos]) != std::string_view::npos) ++pos;
    check(pos < format.size() && pos - begin < 8, "the format '{}' is incomplete", format);
    char kind = format[pos];
    if (kind == '%') {
      out += '%';
      continue;
    }
    check(next < arguments.size(), "the format '{}' has too few arguments", format);
    const Value& value = arguments[next++];
    std::string spec = format.substr(begin, pos - begin);
    check(spec.find_first_of("123456789") == std::string::npos || spec.size() < 5, "the format '{}' is too wide", format);
    char buffer[1600];
    if (kind == 'd' || kind == 'i' || kind == 'x') {
      check(value.is_number(), "the format '{}' needs a number, not a {}", format, value.type_name());
      long long number = value.is_float() ? static_cast<long long>(std::clamp(value.number(), -9e18, 9e18)) : value.integer();
      snprintf(buffer, sizeof buffer, (spec + (kind == 'x' ? "llx" : "lld")).c_str(), number);
      out += buffer;
    } else if (kind == 'f' || kind == 'g' || kind == 'e') {
      check(value.is_number(), "the format '{}' needs a number, not a {}", format, value.type_name());
      snprintf(buffer, sizeof buffer, (spec + kind).c_str(), value.number());
      out += buffer;
    } else {
      check((kind == 's' || kind == 'r') && spec.size() == 1, "the format '{}' is not supported", format);
      out += kind == 's' ? to_string(value) : to_repr(value);
    }
    evaluator.charge(out.size() / 8);
  }
  check(next == arguments.size() || !values.is_list(), "the format '{}' has too many arguments", format);
  return out;
}

}  // namespace

Value arithmetic(Evaluator& evaluator, const std::string& op, const Value& a, const Value& b) {
  if (op == "~") {
    evaluator.charge(a.weight() + b.weight());
    std::string left = to_string(a), right = to_string(b);
    evaluator.charge(left.size() + right.size());
    return left + right;
  }
  if (a.is_number() && b.is_number()) {
    return a.is_float() || b.is_float() ? reals(op, a.number(), b.number()) : integers(op, a.integer(), b.integer());
  }
  if (op == "+" && a.is_string() && b.is_string()) {
    evaluator.charge(a.string().size() + b.string().size());
    return a.string() + b.string();
  }
  if (op == "+" && a.is_list() && b.is_list() && a.is_tuple() == b.is_tuple()) {
    evaluator.charge((a.items().size() + b.items().size()) * 32);
    std::vector<Value> items = a.items();
    items.insert(items.end(), b.items().begin(), b.items().end());
    return Value(std::move(items), a.is_tuple());
  }
  if (op == "*" && (a.is_string() || a.is_list()) && b.is_integral()) return repeat(evaluator, a, b.integer());
  if (op == "*" && (b.is_string() || b.is_list()) && a.is_integral()) return repeat(evaluator, b, a.integer());
  if (op == "%" && a.is_string()) return percent(evaluator, a.string(), b);
  unsupported(op, a, b);
}

const std::string& text_of(const Value& value, const char* what) {
  if (value.is_undefined()) fail("'{}' is undefined", value.undefined_name());
  check(value.is_string(), "{} needs a string, not a {}", what, value.type_name());
  return value.string();
}

int64_t integer_of(const Value& value, const char* what) {
  if (value.is_undefined()) fail("'{}' is undefined", value.undefined_name());
  check(value.is_integral(), "{} needs an integer, not a {}", what, value.type_name());
  return value.integer();
}

std::string text_argument(const Arguments& arguments, size_t position, const char* name, const char* fallback) {
  const Value* value = arguments.get(position, name);
  return value == nullptr ? std::string(fallback) : text_of(*value, name);
}

int64_t integer_argument(const Arguments& arguments, size_t position, const char* name, int64_t fallback) {
  const Value* value = arguments.get(position, name);
  return value == nullptr || value->is_none() ? fallback : integer_of(*value, name);
}

bool flag_argument(const Arguments& arguments, size_t position, const char* name, bool fallback) {
  const Value* value = arguments.get(position, name);
  return value == nullptr ? fallback : value->truthy();
}

std::string replaced(Evaluator& evaluator, const std::string& text, const std::string& from, const std::string& to, int64_t count) {
  std::string out;
  size_t pos = 0;
  auto put = [&](std::string_view part) {
    evaluator.charge(part.size() + 16);
    out += part;
  };
  if (from.empty()) {  // Python puts it around every character
    put(count != 0 ? to : "");
    for (int64_t done = 1; pos < text.size(); ++done) {
      size_t length = code_point_length(static_cast<unsigned char>(text[pos]));
      put(std::string_view(text).substr(pos, length));
      if (count < 0 || done < count) put(to);
      pos += length;
    }
    return out;
  }
  for (size_t hit = text.find(from); hit != std::string::npos && count != 0; hit = text.find(from, pos), --count) {
    put(std::string_view(text).substr(pos, hit - pos));
    put(to);
    pos = hit + from.size();
  }
  put(std::string_view(text).substr(pos));
  return out;
}

std::string stripped(const std::string& text, const Value* characters, bool left, bool right) {
  size_t begin = 0, end = text.size();
  if (characters == nullptr || characters->is_none()) {
    if (left) begin = leading_space(text);
    if (right) end -= trailing_space(std::string_view(text).substr(begin));
    return text.substr(begin, end - begin);
  }
  const std::string& set = text_of(*characters, "strip");
  auto in_set = [&](size_t at, size_t length) { return set.find(text.substr(at, length)) != std::string::npos; };
  while (left && begin < end) {
    size_t length = std::min(code_point_length(static_cast<unsigned char>(text[begin])), end - begin);
    if (!in_set(begin, length)) break;
    begin += length;
  }
  while (right && end > begin) {
    size_t last = end - 1;
    while (last > begin && (text[last] & 0xC0) == 0x80) --last;
    if (!in_set(last, end - last)) break;
    end = last;
  }
  return text.substr(begin, end - begin);
}

std::string capitalized(const std::string& text) {
  if (text.empty()) return text;
  size_t first = std::min(code_point_length(static_cast<unsigned char>(text[0])), text.size());
  return to_upper(std::string_view(text).substr(0, first)) + to_lower(std::string_view(text).substr(first));
}

}  // namespace mr::jinja
