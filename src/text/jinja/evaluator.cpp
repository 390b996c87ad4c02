#include "text/jinja/evaluator.h"

#include <algorithm>

#include "core/error.h"

namespace mr::jinja {

namespace {

constexpr size_t budget = size_t{512} << 20;  // bytes made and steps taken, a step counting as step_cost bytes
constexpr size_t step_cost = 128, iteration_cost = 1024;
constexpr int max_depth = 600;  // of evaluation: nested expressions, blocks and macro calls

using EKind = Expression::Kind;
using SKind = Statement::Kind;

}  // namespace

struct Evaluator::Deeper {
  explicit Deeper(Evaluator& evaluator) : depth_(evaluator.depth_) {
    check(depth_ < max_depth, "the template calls itself deeper than {}", max_depth);
    ++depth_;
  }
  ~Deeper() { --depth_; }
  int& depth_;
};

Evaluator::Evaluator(std::vector<std::pair<std::string, Value>> variables) {
  scope_ = &push_scope(nullptr);
  for (auto& [name, value] : variables) scope_->names[name] = std::move(value);
}

Evaluator::~Evaluator() {
  for (auto& space : namespaces_) space->attributes.clear();
}

void Evaluator::charge(size_t bytes) {
  spent_ += std::min(bytes, budget);
  check(spent_ <= budget, "the template does more work than is allowed");
}

std::string Evaluator::render(const Body& body) {
  std::string out;
  out_ = &out;
  try {
    run(body);
  } catch (const Error& error) {
    fail("chat template, line {}: {}", line_, error.what());
  }
  return out;
}

Scope& Evaluator::push_scope(Scope* parent) {
  scopes_.emplace_back();
  scopes_.back().parent = parent;
  return scopes_.back();
}

// Leaves the current scope. It is freed only if it is the newest and no macro needs it; the rest goes at the end.
void Evaluator::pop_scope(Scope* previous) {
  if (scope_ == &scopes_.back() && !scope_->captured) scopes_.pop_back();
  scope_ = previous;
}

// --- statements ---

Evaluator::Flow Evaluator::run(const Body& body) {
  Deeper deeper(*this);
  for (const auto& statement : body) {
    Flow flow = run(*statement);
    if (flow != Flow::normal) return flow;
  }
  return Flow::normal;
}

Evaluator::Flow Evaluator::run(const Statement& statement) {
  line_ = statement.line;
  charge(step_cost);
  switch (statement.kind) {
    case SKind::data:
      charge(statement.text.size());
      out_->append(statement.text);
      return Flow::normal;
    case SKind::output: {
      Value value = evaluate(*statement.expression);
      charge(value.weight() * 8);
      std::string text = to_string(value);
      charge(text.size());
      out_->append(text);
      return Flow::normal;
    }
    case SKind::loop:
      return run_loop(statement);
    case SKind::conditional:
      for (const auto& [condition, body] : statement.branches) {
        if (evaluate(*condition).truthy()) return run(body);
      }
      return run(statement.other);
    case SKind::set:
    case SKind::set_block:
      run_set(statement);
      return Flow::normal;
    case SKind::macro:
      scope_->names[statement.text] = make_macro(statement);
      return Flow::normal;
    case SKind::call_block:
      run_call_block(statement);
      return Flow::normal;
    case SKind::with_block:
    case SKind::filter_block:
      return run_scoped(statement);
    case SKind::group:
      return run(statement.body);
    case SKind::leave:
      return Flow::leave;
    case SKind::next:
      return Flow::next;
  }
  return Flow::normal;
}

void Evaluator::assign(const Statement& statement, const Value& value) {
  if (!statement.unpack) {
    scope_->names[statement.targets[0]] = value;
    return;
  }
  std::vector<Value> parts = iterate(value);
  check(parts.size() == statement.targets.size(), "{} values cannot be unpacked into {} names", parts.size(), statement.targets.size());
  for (size_t i = 0; i < parts.size(); ++i) scope_->names[statement.targets[i]] = parts[i];
}

std::vector<Value> Evaluator::loop_items(const Statement& statement) {
  std::vector<Value> items = iterate(evaluate(*statement.expression));
  if (statement.condition == nullptr) return items;
  std::vector<Value> kept;
  for (Value& item : items) {
    Scope* outer = scope_;
    scope_ = &push_scope(outer);
    assign(statement, item);
    bool keep = evaluate(*statement.condition).truthy();
    pop_scope(outer);
    if (keep) kept.push_back(std::move(item));
  }
  return kept;
}

void Evaluator::set_loop_attributes(Namespace& loop, const std::vector<Value>& items, size_t at) {
  auto n = static_cast<int64_t>(items.size()), i = static_cast<int64_t>(at);
  if (at == 0) {
    for (const char* name : {"cycle", "changed"}) {
      auto function = std::make_shared<Callable>();
      function->name = name;
      function->function = find_function(std::string("loop.") + name);
      function->self = Value(namespaces_.back());
      loop.attributes.emplace_back(name, std::shared_ptr<const Callable>(function));
    }
    for (const char* name :
         {"index", "index0", "revindex", "revindex0", "first", "last", "length", "depth", "depth0", "previtem", "nextitem"}) {
      loop.attributes.emplace_back(name, Value());
    }
  }
  auto set = [&, slot = size_t{2}](Value value) mutable { loop.attributes[slot++].second = std::move(value); };
  set(i + 1);
  set(i);
  set(n - i);
  set(n - i - 1);
  set(i == 0);
  set(i + 1 == n);
  set(n);
  set(int64_t{1});  // depth and depth0 count recursive loops only
  set(int64_t{0});
  set(i > 0 ? items[at - 1] : Value::undefined("loop.previtem"));
  set(i + 1 < n ? items[at + 1] : Value::undefined("loop.nextitem"));
}

Evaluator::Flow Evaluator::run_loop(const Statement& statement) {
  std::vector<Value> items = loop_items(statement);
  if (items.empty()) return run(statement.other);
  return run_loop_items(statement, items);
}

Evaluator::Flow Evaluator::run_loop_items(const Statement& statement, const std::vector<Value>& items) {
  Value loop = make_namespace();
  for (size_t i = 0; i < items.size(); ++i) {
    charge(iteration_cost);
    Scope* outer = scope_;
    scope_ = &push_scope(outer);
    set_loop_attributes(loop.space(), items, i);
    scope_->names["loop"] = loop;
    assign(statement, items[i]);
    Flow flow = run(statement.body);
    pop_scope(outer);
    if (flow == Flow::leave) break;
  }
  return Flow::normal;
}

std::string Evaluator::captured(const Body& body) {
  std::string text;
  std::string* outer_out = std::exchange(out_, &text);
  Scope* outer = scope_;
  scope_ = &push_scope(outer);
  run(body);
  pop_scope(outer);
  out_ = outer_out;
  return text;
}

void Evaluator::run_set(const Statement& statement) {
  Value value;
  if (statement.kind == SKind::set_block) {
    value = Value(captured(statement.body));
    if (statement.expression) value = evaluate_filter(*statement.expression, &value);
  } else {
    value = evaluate(*statement.expression);
  }
  if (statement.attribute.empty()) return assign(statement, value);
  Value space = lookup(statement.text);
  check(space.is_namespace(), "'{}' is not a namespace, so its attribute '{}' cannot be set", statement.text, statement.attribute);
  for (auto& [name, old] : space.space().attributes) {
    if (name == statement.attribute) {
      old = std::move(value);
      return;
    }
  }
  check(space.space().attributes.size() < 1000, "a namespace has more than 1000 attributes");
  space.space().attributes.emplace_back(statement.attribute, std::move(value));
}

Evaluator::Flow Evaluator::run_scoped(const Statement& statement) {
  if (statement.kind == SKind::filter_block) {
    Value text(captured(statement.body));
    out_->append(to_string(evaluate_filter(*statement.expression, &text)));
    return Flow::normal;
  }
  std::vector<std::pair<std::string, Value>> values;
  for (const auto& [name, expression] : statement.named) values.emplace_back(name, evaluate(*expression));
  Scope* outer = scope_;
  scope_ = &push_scope(outer);
  for (auto& [name, value] : values) scope_->names[name] = std::move(value);
  Flow flow = run(statement.body);
  pop_scope(outer);
  return flow;
}

Value Evaluator::make_macro(const Statement& statement) {
  for (Scope* scope = scope_; scope != nullptr; scope = scope->parent) scope->captured = true;
  auto macro = std::make_shared<Callable>();
  macro->name = statement.text;
  macro->macro = &statement;
  macro->scope = scope_;
  return std::shared_ptr<const Callable>(std::move(macro));
}

void Evaluator::run_call_block(const Statement& statement) {
  Value callee = evaluate(*statement.expression->children[0]);
  Arguments arguments = arguments_of(*statement.expression);
  arguments.named.emplace_back("caller", make_macro(statement));
  std::string text = to_string(call(callee, arguments));
  charge(text.size());
  out_->append(text);
}

Value Evaluator::call_macro(const Callable& macro, const Arguments& arguments) {
  Deeper deeper(*this);
  const Statement& definition = *macro.macro;
  size_t n = definition.targets.size(), required = n - definition.defaults.size();
  check(arguments.positional.size() <= n, "the macro '{}' takes {} arguments but was given {}", macro.name, n, arguments.positional.size());
  Scope* outer = scope_;
  scope_ = &push_scope(macro.scope);
  std::string text;
  std::string* outer_out = std::exchange(out_, &text);
  int outer_line = line_;
  for (size_t i = 0; i < n; ++i) {
    const std::string& name = definition.targets[i];
    const Value* given = arguments.get(i, name);
    Value value = given != nullptr ? *given : i >= required ? evaluate(*definition.defaults[i - required]) : Value::undefined(name);
    scope_->names[name] = std::move(value);
  }
  for (const auto& [name, value] : arguments.named) {
    bool known = name == "caller" || std::find(definition.targets.begin(), definition.targets.end(), name) != definition.targets.end();
    check(known, "the macro '{}' has no parameter '{}'", macro.name, name);
    if (name == "caller") scope_->names[name] = value;
  }
  run(definition.body);
  pop_scope(outer);
  out_ = outer_out;
  line_ = outer_line;
  return text;
}

Value Evaluator::make_namespace() {
  charge(256);
  namespaces_.push_back(std::make_shared<Namespace>());
  return Value(namespaces_.back());
}

// --- expressions ---

Value Evaluator::evaluate(const Expression& expression) {
  Deeper deeper(*this);
  line_ = expression.line;
  charge(step_cost);
  switch (expression.kind) {
    case EKind::constant:
      return expression.value;
    case EKind::name:
      return lookup(expression.text);
    case EKind::attribute:
      return attribute(evaluate(*expression.children[0]), expression.text);
    case EKind::conditional:
      if (evaluate(*expression.children[0]).truthy()) return evaluate(*expression.children[1]);
      return expression.children[2] ? evaluate(*expression.children[2]) : Value::undefined("the missing else");
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

Value Evaluator::lookup(const std::string& name) {
  for (Scope* scope = scope_; scope != nullptr; scope = scope->parent) {
    if (auto found = scope->names.find(name); found != scope->names.end()) return found->second;
  }
  if (Callable::Function function = find_function(name)) {
    auto builtin = std::make_shared<Callable>();
    builtin->name = name;
    builtin->function = function;
    return std::shared_ptr<const Callable>(std::move(builtin));
  }
  return Value::undefined(name);
}

Value Evaluator::evaluate_list(const Expression& expression) {
  std::vector<Value> items;
  for (const auto& child : expression.children) items.push_back(evaluate(*child));
  return Value(std::move(items), expression.kind == EKind::tuple);
}

Value Evaluator::evaluate_dict(const Expression& expression) {
  auto dict = std::make_shared<Dict>();
  for (size_t i = 0; i + 1 < expression.children.size(); i += 2) {
    Value key = evaluate(*expression.children[i]);
    dict->set(key, evaluate(*expression.children[i + 1]));
  }
  return std::shared_ptr<const Dict>(std::move(dict));
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
    charge(left.weight() + right.weight());
    bool holds;
    if (op == "==" || op == "!=") {
      holds = equal(left, right) == (op == "==");
    } else if (op == "in" || op == "not in") {
      holds = contains(right, left) == (op == "in");
    } else {
      int order = compare(left, right);
      holds = op == "<" ? order < 0 : op == ">" ? order > 0 : op == "<=" ? order <= 0 : order >= 0;
    }
    if (!holds) return false;
    left = std::move(right);
  }
  return true;
}

Value Evaluator::evaluate_slice(const Expression& expression) {
  Value object = evaluate(*expression.children[0]);
  if (object.is_undefined()) fail("'{}' is undefined", object.undefined_name());
  check(object.is_string() || object.is_list(), "a {} cannot be sliced", object.type_name());
  Value part[3];
  for (int i = 0; i < 3; ++i) {
    if (expression.children[i + 1]) part[i] = evaluate(*expression.children[i + 1]);
    check(part[i].is_none() || part[i].is_integral(), "slice bounds must be integers, not a {}", part[i].type_name());
  }
  auto length = static_cast<int64_t>(object.is_string() ? length_of(object.string()) : object.items().size());
  charge(object.is_string() ? object.string().size() : object.items().size() * 32);
  int64_t step = part[2].is_none() ? 1 : part[2].integer();
  check(step != 0 && step > -(int64_t{1} << 40) && step < (int64_t{1} << 40), "a slice's step is {}", step);
  auto bound = [&](const Value& v, int64_t fallback) {
    if (v.is_none()) return fallback;
    int64_t at = v.integer() < 0 ? v.integer() + length : v.integer();
    return step > 0 ? std::clamp<int64_t>(at, 0, length) : std::clamp<int64_t>(at, -1, length - 1);
  };
  int64_t begin = bound(part[0], step > 0 ? 0 : length - 1), end = bound(part[1], step > 0 ? length : -1);
  if (object.is_string() && step == 1) return substring(object.string(), begin, std::max(begin, end));
  std::vector<Value> source = iterate(object), taken;
  for (int64_t i = begin; step > 0 ? i < end : i > end; i += step) taken.push_back(source[static_cast<size_t>(i)]);
  if (object.is_list()) return Value(std::move(taken), object.is_tuple());
  std::string text;
  for (const Value& character : taken) text += character.string();
  return text;
}

Arguments Evaluator::arguments_of(const Expression& expression) {
  Arguments arguments;
  for (size_t i = 1; i < expression.children.size(); ++i) arguments.positional.push_back(evaluate(*expression.children[i]));
  for (const auto& [name, value] : expression.named) arguments.named.emplace_back(name, evaluate(*value));
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
  if (callee.is_undefined()) fail("'{}' is undefined", callee.undefined_name());
  check(callee.is_callable(), "a {} cannot be called", callee.type_name());
  const Callable& callable = callee.callable();
  if (callable.self.is_string()) charge(callable.self.string().size() / 4);
  return callable.macro != nullptr ? call_macro(callable, arguments) : callable.function(*this, callable.self, arguments);
}

Value Evaluator::filter(const std::string& name, const Value& input, const Arguments& arguments) {
  Callable::Function function = find_filter(name);
  check(function != nullptr, "there is no filter '{}'", name);
  charge(step_cost + (input.is_string() ? input.string().size() : 0));
  return function(*this, input, arguments);
}

bool Evaluator::test(const std::string& name, const Value& input, const Arguments& arguments) {
  Callable::Function function = find_test(name);
  check(function != nullptr, "there is no test '{}'", name);
  return function(*this, input, arguments).truthy();
}

Value Evaluator::attribute(const Value& object, const std::string& name) {
  if (object.is_undefined()) fail("'{}' is undefined", object.undefined_name());
  if (object.is_namespace()) {
    for (const auto& [key, value] : object.space().attributes) {
      if (key == name) return value;
    }
    return Value::undefined(name);
  }
  if (Callable::Function function = find_method(object, name)) {
    auto method = std::make_shared<Callable>();
    method->name = name;
    method->function = function;
    method->self = object;
    return std::shared_ptr<const Callable>(std::move(method));
  }
  if (object.is_dict()) {
    if (const Value* found = object.dict().find(std::string_view(name))) return *found;
  }
  return Value::undefined(name);
}

Value Evaluator::item(const Value& object, const Value& key) {
  if (object.is_undefined()) fail("'{}' is undefined", object.undefined_name());
  if (object.is_dict()) {
    if (!key.is_undefined()) {
      if (const Value* found = object.dict().find(key)) return *found;
    }
  } else if ((object.is_list() || object.is_string()) && key.is_integral()) {
    auto length = static_cast<int64_t>(object.is_list() ? object.items().size() : length_of(object.string()));
    int64_t at = key.integer() < 0 ? key.integer() + length : key.integer();
    if (at < 0 || at >= length) return Value::undefined(fmt::format("item {}", key.integer()));
    if (object.is_list()) return object.items()[static_cast<size_t>(at)];
    charge(object.string().size() / 16);
    return substring(object.string(), at, at + 1);
  }
  return key.is_string() ? attribute(object, key.string()) : Value::undefined(to_string(key));
}

std::vector<Value> Evaluator::iterate(const Value& value) {
  std::vector<Value> out;
  if (value.is_list()) {
    charge(value.items().size() * 8);
    return value.items();
  }
  if (value.is_dict()) {
    for (const auto& entry : value.dict().entries) out.push_back(entry.first);
  } else if (value.is_string()) {
    const std::string& text = value.string();
    charge(text.size() * 64);
    for (size_t pos = 0; pos < text.size();) {
      size_t next = pos + 1;
      while (next < text.size() && (text[next] & 0xC0) == 0x80) ++next;
      out.emplace_back(text.substr(pos, next - pos));
      pos = next;
    }
  } else {
    check(value.is_undefined(), "a {} cannot be iterated over", value.type_name());
  }
  charge(out.size() * 32);
  return out;
}

}  // namespace mr::jinja
