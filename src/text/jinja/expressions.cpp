// Expressions: the second half of the evaluator.
#include <algorithm>

#include "core/error.h"
#include "text/jinja/evaluator.h"
#include "text/unicode.h"

namespace mr::jinja {

namespace {

using EKind = Expression::Kind;

void check_defined(const Value& value) {
  if (value.is_undefined()) fail("'{}' is undefined", value.undefined_name());
}

// Where each character begins, and the end.
std::vector<size_t, Counted<size_t>> character_starts(Meter& meter, std::string_view text) {
  meter.work(text.size() * 2);
  std::vector<size_t, Counted<size_t>> starts(meter);
  for (size_t pos = 0; pos < text.size(); pos += code_point_length(static_cast<unsigned char>(text[pos]))) starts.push_back(pos);
  starts.push_back(text.size());
  return starts;
}

}  // namespace

Value Evaluator::evaluate(const Expression& expression) {
  Deeper deeper(*this);
  line_ = expression.line;
  meter_.work(step_cost);
  switch (expression.kind) {
    case EKind::constant:
      return expression.value;
    case EKind::name:
      return lookup(expression.text);
    case EKind::attribute:
      return attribute(evaluate(*expression.children[0]), expression.text);
    case EKind::conditional:
      if (evaluate(*expression.children[0]).truthy()) return evaluate(*expression.children[1]);
      return expression.children[2] ? evaluate(*expression.children[2]) : Value::undefined(meter_, "the missing else");
    default:
      return evaluate_compound(expression);
  }
}

Value Evaluator::evaluate_compound(const Expression& expression) {
  switch (expression.kind) {
    case EKind::list:
    case EKind::tuple:
      return evaluate_list(expression);
    case EKind::dict:
      return evaluate_dict(expression);
    case EKind::unary:
      return evaluate_unary(expression);
    case EKind::binary:
      return evaluate_binary(expression);
    case EKind::compare:
      return evaluate_compare(expression);
    case EKind::slice:
      return evaluate_slice(expression);
    case EKind::call:
      return evaluate_call(expression);
    case EKind::filter:
      return evaluate_filter(expression, nullptr);
    case EKind::item: {
      Value object = evaluate(*expression.children[0]);
      return item(object, evaluate(*expression.children[1]));
    }
    case EKind::test: {
      Value input = evaluate(*expression.children[0]);
      return test(expression.text, input, arguments_of(expression));
    }
    default:
      fail("an expression of unknown kind");
  }
}

Value Evaluator::lookup(std::string_view name) {
  for (Scope* scope = scope_; scope != nullptr; scope = scope->parent) {
    meter_.work(scope_cost);
    if (auto found = scope->names.find(name); found != scope->names.end()) return found->second;
  }
  if (const Builtin* builtin = find_in(functions(), name))
    return Value(Callable{.name = builtin->first, .function = builtin->second}, meter_);
  return Value::undefined(meter_, name);
}

Value Evaluator::evaluate_list(const Expression& expression) {
  Items items(meter_);
  items.reserve(expression.children.size());
  for (const auto& child : expression.children) items.push_back(evaluate(*child));
  return Value(std::move(items), expression.kind == EKind::tuple);
}

Value Evaluator::evaluate_dict(const Expression& expression) {
  Dict dict(meter_);
  for (size_t i = 0; i + 1 < expression.children.size(); i += 2) {
    Value key = evaluate(*expression.children[i]);
    dict.set(key, evaluate(*expression.children[i + 1]));
  }
  return dict;
}

Value Evaluator::evaluate_unary(const Expression& expression) {
  Value value = evaluate(*expression.children[0]);
  if (expression.text == "not") return !value.truthy();
  return arithmetic(*this, expression.text, Value(int64_t{0}), value);
}

Value Evaluator::evaluate_binary(const Expression& expression) {
  Value left = evaluate(*expression.children[0]);
  if (expression.text == "and") return left.truthy() ? evaluate(*expression.children[1]) : left;
  if (expression.text == "or") return left.truthy() ? left : evaluate(*expression.children[1]);
  Value right = evaluate(*expression.children[1]);
  line_ = expression.line;
  return arithmetic(*this, expression.text, left, right);
}

Value Evaluator::evaluate_compare(const Expression& expression) {
  Value left = evaluate(*expression.children[0]);
  for (size_t i = 0; i < expression.operators.size(); ++i) {
    Value right = evaluate(*expression.children[i + 1]);
    const std::string& op = expression.operators[i];
    bool holds;
    if (op == "==" || op == "!=") {
      holds = equal(meter_, left, right) == (op == "==");
    } else if (op == "in" || op == "not in") {
      holds = contains(meter_, right, left) == (op == "in");
    } else {
      int order = compare(meter_, left, right);
      holds = op == "<" ? order < 0 : op == ">" ? order > 0 : op == "<=" ? order <= 0 : order >= 0;
    }
    if (!holds) return false;
    left = std::move(right);
  }
  return true;
}

Value Evaluator::evaluate_slice(const Expression& expression) {
  Value object = evaluate(*expression.children[0]);
  check_defined(object);
  check(object.is_string() || object.is_list(), "a {} cannot be sliced", object.type_name());
  Value part[3];
  for (int i = 0; i < 3; ++i) {
    if (expression.children[i + 1]) part[i] = evaluate(*expression.children[i + 1]);
    check(part[i].is_none() || part[i].is_integral(), "slice bounds must be integers, not a {}", part[i].type_name());
  }
  auto length = static_cast<int64_t>(object.is_string() ? length_of(meter_, object.string()) : object.items().size());
  int64_t step = part[2].is_none() ? 1 : clamped(part[2].integer());
  check(step != 0, "a slice's step is 0");
  auto bound = [&](const Value& v, int64_t fallback) {
    if (v.is_none()) return fallback;
    int64_t at = clamped(v.integer()) + (v.integer() < 0 ? length : 0);
    return step > 0 ? std::clamp<int64_t>(at, 0, length) : std::clamp<int64_t>(at, -1, length - 1);
  };
  int64_t begin = bound(part[0], step > 0 ? 0 : length - 1), end = bound(part[1], step > 0 ? length : -1);
  if (object.is_string() && step == 1) return Value::text(meter_, substring(meter_, object.string(), begin, std::max(begin, end)));
  auto each = [&](auto take) {
    for (int64_t i = begin; step > 0 ? i < end : i > end; i += step) take(static_cast<size_t>(i));
  };
  meter_.work(visit_cost * static_cast<size_t>(std::max<int64_t>(0, (end - begin) / step + 1)));
  if (object.is_list()) {
    Items taken(meter_);
    each([&](size_t i) { taken.push_back(object.items()[i]); });
    return Value(std::move(taken), object.is_tuple());
  }
  auto starts = character_starts(meter_, object.string());
  Text text(meter_);
  each([&](size_t i) { text.append(object.string().substr(starts[i], starts[i + 1] - starts[i])); });
  return text;
}

Arguments Evaluator::arguments_of(const Expression& expression) {
  Arguments arguments(meter_);
  for (size_t i = 1; i < expression.children.size(); ++i) arguments.positional.push_back(evaluate(*expression.children[i]));
  for (const auto& [key, value] : expression.named) arguments.named.emplace_back(key, evaluate(*value));
  return arguments;
}

Value Evaluator::evaluate_call(const Expression& expression) {
  Value callee = evaluate(*expression.children[0]);
  Arguments arguments = arguments_of(expression);
  line_ = expression.line;
  return call(callee, arguments);
}

Value Evaluator::evaluate_filter(const Expression& expression, const Value* block) {
  Value input;
  if (expression.children[0] != nullptr) {
    input = block != nullptr && expression.children[0]->kind == EKind::filter ? evaluate_filter(*expression.children[0], block)
                                                                              : evaluate(*expression.children[0]);
  } else {
    check(block != nullptr, "the filter '{}' has nothing to work on", expression.text);
    input = *block;
  }
  Arguments arguments = arguments_of(expression);
  line_ = expression.line;
  return filter(expression.text, input, arguments);
}

Value Evaluator::call(const Value& callee, const Arguments& arguments) {
  Deeper deeper(*this);
  check_defined(callee);
  check(callee.is_callable(), "a {} cannot be called", callee.type_name());
  const Callable& callable = callee.callable();
  return callable.macro != nullptr ? call_macro(callable, arguments) : callable.function(*this, callable.self, arguments);
}

Value Evaluator::filter(std::string_view name, const Value& input, const Arguments& arguments) {
  Deeper deeper(*this);
  meter_.work(step_cost + name.size());
  const Builtin* builtin = find_in(filters(), name);
  check(builtin != nullptr, "there is no filter '{}'", name);
  return builtin->second(*this, input, arguments);
}

bool Evaluator::test(std::string_view name, const Value& input, const Arguments& arguments) {
  meter_.work(step_cost + name.size());
  const Builtin* builtin = find_in(tests(), name);
  check(builtin != nullptr, "there is no test '{}'", name);
  return builtin->second(*this, input, arguments).truthy();
}

Value Evaluator::loop_attribute(const Value& object, std::string_view name) {
  const Loop& loop = object.loop();
  std::span<const Value> items = loop.items.items();
  auto n = static_cast<int64_t>(items.size()), i = static_cast<int64_t>(loop.at);
  if (name == "index") return i + 1;
  if (name == "index0") return i;
  if (name == "revindex") return n - i;
  if (name == "revindex0") return n - i - 1;
  if (name == "first") return i == 0;
  if (name == "last") return i + 1 == n;
  if (name == "length") return n;
  if (name == "depth") return int64_t{1};  // these two count recursive loops only
  if (name == "depth0") return int64_t{0};
  if (name == "previtem") return i > 0 ? items[loop.at - 1] : Value::undefined(meter_, "loop.previtem");
  if (name == "nextitem") return i + 1 < n ? items[loop.at + 1] : Value::undefined(meter_, "loop.nextitem");
  const Builtin* method = find_method(object, name);
  if (method == nullptr) return Value::undefined(meter_, name);
  return Value(Callable{.name = method->first, .function = method->second, .self = object}, meter_);
}

Value Evaluator::attribute(const Value& object, std::string_view name) {
  check_defined(object);
  meter_.work(step_cost + name.size());
  if (object.is_loop()) return loop_attribute(object, name);
  if (object.is_namespace()) {
    const auto& attributes = object.space().attributes;
    auto found = attributes.find(name);
    return found != attributes.end() ? found->second : Value::undefined(meter_, name);
  }
  if (const Builtin* method = find_method(object, name))
    return Value(Callable{.name = method->first, .function = method->second, .self = object}, meter_);
  if (object.is_dict()) {
    if (const Value* found = object.dict().find(meter_, name)) return *found;
  }
  return Value::undefined(meter_, name);
}

Value Evaluator::item(const Value& object, const Value& key) {
  check_defined(object);
  if (object.is_dict()) {
    const Value* found = key.is_undefined() ? nullptr : object.dict().find(meter_, key);
    if (found != nullptr) return *found;
  } else if ((object.is_list() || object.is_string()) && key.is_integral()) {
    auto length = static_cast<int64_t>(object.is_list() ? object.items().size() : length_of(meter_, object.string()));
    int64_t at = clamped(key.integer()) + (key.integer() < 0 ? length : 0);
    if (at < 0 || at >= length) return Value::undefined(meter_, fmt::format("item {}", key.integer()));
    if (object.is_list()) return object.items()[static_cast<size_t>(at)];
    return Value::text(meter_, substring(meter_, object.string(), at, at + 1));
  }
  if (key.is_string()) return attribute(object, key.string());
  return Value::undefined(meter_, as_string(*this, key).string());
}

Value Evaluator::iterate(const Value& value) {
  if (value.is_list()) {
    meter_.work(value.items().size() * visit_cost);
    return value;
  }
  Items out(meter_);
  if (value.is_dict()) {
    meter_.work(value.dict().entries.size() * visit_cost);
    for (const auto& entry : value.dict().entries) out.push_back(entry.first);
  } else if (value.is_string()) {
    auto starts = character_starts(meter_, value.string());
    for (size_t i = 0; i + 1 < starts.size(); ++i)
      out.push_back(Value::text(meter_, value.string().substr(starts[i], starts[i + 1] - starts[i])));
  } else {
    check(value.is_undefined(), "a {} cannot be iterated over", value.type_name());
  }
  return out;
}

}  // namespace mr::jinja
