// Statements. Expressions are in expressions.cpp.
#include "text/jinja/evaluator.h"

#include <algorithm>

#include "core/error.h"

namespace mr::jinja {

namespace {

constexpr size_t iteration_cost = 128;
constexpr int max_evaluation_depth = 600;  // of evaluation: nested expressions, blocks, calls and filters

using SKind = Statement::Kind;

// Ends a loop on every path: the arguments that loop.changed() kept may refer to the loop itself.
struct Running {
  ~Running() {
    loop.running = false;
    loop.changed = Value();
  }
  Loop& loop;
};

}  // namespace

Evaluator::Deeper::Deeper(Evaluator& evaluator) : depth(evaluator.depth_) {
  check(depth < max_evaluation_depth, "the template calls itself deeper than {}", max_evaluation_depth);
  ++depth;
}

Evaluator::Evaluator(Meter& meter, Variables variables)
    : meter_(meter), variables_(std::move(variables)), scopes_(meter), namespaces_(meter) {
  scope_ = &push_scope(nullptr);
  for (auto& [key, value] : variables_) name(key, std::move(value));
}

Evaluator::~Evaluator() {
  for (auto& space : namespaces_) space->attributes.clear();
}

std::string Evaluator::render(const Body& body) {
  Text out(meter_);
  out_ = &out;
  try {
    run(body);
  } catch (const Stopped&) {
    throw;
  } catch (const Error& error) {
    fail("chat template, line {}: {}", line_, error.what());
  } catch (const std::bad_variant_access&) {  // a builtin did not check the type of an argument
    fail("chat template, line {}: a value of a wrong type", line_);
  }
  check(out.size() <= meter_.limits().output, "the chat template writes {} bytes, more than the {} that are allowed", out.size(),
        meter_.limits().output);
  meter_.take(out.size());  // for a moment both are there
  std::string copy(out);
  meter_.give_back(out.size());
  return copy;
}

Scope& Evaluator::push_scope(Scope* parent) { return scopes_.emplace_back(meter_, parent); }

// Leaves the current scope. It is freed now if it is the newest and no macro captured it, else with the evaluator.
void Evaluator::pop_scope(Scope* previous) {
  if (scope_ == &scopes_.back() && !scope_->captured) scopes_.pop_back();
  scope_ = previous;
}

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
  meter_.work(step_cost);
  switch (statement.kind) {
    case SKind::data:
      meter_.work(statement.text.size() / 8);
      out_->append(statement.text);
      return Flow::normal;
    case SKind::output:
      print(*out_, evaluate(*statement.expression));
      return Flow::normal;
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
      name(statement.text, make_macro(statement));
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
  if (!statement.unpack) return name(statement.targets[0], value);
  Value parts = iterate(value);
  size_t n = parts.items().size();
  check(n == statement.targets.size(), "{} values cannot be unpacked into {} names", n, statement.targets.size());
  for (size_t i = 0; i < n; ++i) name(statement.targets[i], parts.items()[i]);
}

Value Evaluator::loop_items(const Statement& statement) {
  Value all = iterate(evaluate(*statement.expression));
  if (statement.condition == nullptr) return all;
  Items kept(meter_);
  for (const Value& item : all.items()) {
    Scope* outer = scope_;
    scope_ = &push_scope(outer);
    assign(statement, item);
    bool keep = evaluate(*statement.condition).truthy();
    pop_scope(outer);
    if (keep) kept.push_back(item);
  }
  return kept;
}

Evaluator::Flow Evaluator::run_loop(const Statement& statement) {
  Value items = loop_items(statement);
  if (items.items().empty()) return run(statement.other);
  int depth = items.depth();
  return run_loop_items(statement, std::allocate_shared<Loop>(Counted<Loop>(meter_), Loop{std::move(items), depth}));
}

Evaluator::Flow Evaluator::run_loop_items(const Statement& statement, const std::shared_ptr<Loop>& loop) {
  Running running{*loop};
  std::span<const Value> items = loop->items.items();
  for (size_t i = 0; i < items.size(); ++i) {
    meter_.work(iteration_cost);
    loop->at = i;
    Scope* outer = scope_;
    scope_ = &push_scope(outer);
    name("loop", loop);
    assign(statement, items[i]);
    Flow flow = run(statement.body);
    pop_scope(outer);
    if (flow == Flow::leave) break;
  }
  return Flow::normal;
}

Value Evaluator::captured(const Body& body) {
  Text text(meter_);
  Text* outer_out = std::exchange(out_, &text);
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
    value = captured(statement.body);
    if (statement.expression) value = evaluate_filter(*statement.expression, &value);
  } else {
    value = evaluate(*statement.expression);
  }
  if (statement.attribute.empty()) return assign(statement, value);
  Value space = lookup(statement.text);
  check(space.is_namespace(), "'{}' is not a namespace, so its attribute '{}' cannot be set", statement.text, statement.attribute);
  auto& attributes = space.space().attributes;
  if (auto old = attributes.find(std::string_view(statement.attribute)); old != attributes.end()) {
    old->second = std::move(value);
  } else {
    attributes.emplace(Text(statement.attribute, meter_), std::move(value));
  }
}

Evaluator::Flow Evaluator::run_scoped(const Statement& statement) {
  if (statement.kind == SKind::filter_block) {
    Value text = captured(statement.body);
    print(*out_, evaluate_filter(*statement.expression, &text));
    return Flow::normal;
  }
  Items values(meter_);
  for (const auto& [key, expression] : statement.named) values.push_back(evaluate(*expression));
  Scope* outer = scope_;
  scope_ = &push_scope(outer);
  for (size_t i = 0; i < values.size(); ++i) name(statement.named[i].first, std::move(values[i]));
  Flow flow = run(statement.body);
  pop_scope(outer);
  return flow;
}

Value Evaluator::make_macro(const Statement& statement) {
  for (Scope* scope = scope_; scope != nullptr; scope = scope->parent) {
    meter_.work(scope_cost);
    scope->captured = true;
  }
  return Value(Callable{.name = statement.text, .macro = &statement, .scope = scope_}, meter_);
}

void Evaluator::run_call_block(const Statement& statement) {
  Value callee = evaluate(*statement.expression->children[0]);
  Arguments arguments = arguments_of(*statement.expression);
  arguments.named.emplace_back("caller", make_macro(statement));
  print(*out_, call(callee, arguments));
}

Value Evaluator::call_macro(const Callable& macro, const Arguments& arguments) {
  const Statement& definition = *macro.macro;
  size_t n = definition.targets.size(), required = n - definition.defaults.size();
  check(arguments.positional.size() <= n, "the macro '{}' takes {} arguments but was given {}", macro.name, n, arguments.positional.size());
  meter_.work(step_cost + n * (1 + arguments.named.size()) * 8);  // names are searched linearly
  Scope* outer = scope_;
  scope_ = &push_scope(macro.scope);
  Text text(meter_);
  Text* outer_out = std::exchange(out_, &text);
  int outer_line = line_;
  for (size_t i = 0; i < n; ++i) {
    const std::string& target = definition.targets[i];
    const Value* given = arguments.get(i, target);
    name(target, given != nullptr ? *given
                 : i >= required  ? evaluate(*definition.defaults[i - required])
                                  : Value::undefined(meter_, target));
  }
  for (const auto& [key, value] : arguments.named) {
    bool known = key == "caller" || std::find(definition.targets.begin(), definition.targets.end(), key) != definition.targets.end();
    check(known, "the macro '{}' has no parameter '{}'", macro.name, key);
    if (key == "caller") name(key, value);
  }
  run(definition.body);
  pop_scope(outer);
  out_ = outer_out;
  line_ = outer_line;
  return text;
}

Value Evaluator::make_namespace() {
  namespaces_.push_back(std::allocate_shared<Namespace>(Counted<Namespace>(meter_), Namespace{CountedMap<Text, Value>(meter_)}));
  return Value(namespaces_.back());
}

}  // namespace mr::jinja
