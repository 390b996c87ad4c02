// Runs a parsed template. Steps, allocations and visits are charged to one meter, so that no template runs or grows for ever.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/jinja/ast.h"

namespace mr::jinja {

struct Scope {
  Scope(Meter& meter, Scope* parent) : parent(parent), names(meter) {}
  Scope* parent;
  CountedMap<std::string_view, Value> names;  // of the template or of the variables
  bool captured = false;                      // a macro was defined here and may still look it up
};

using Variables = std::vector<std::pair<std::string, Value>>;

class Evaluator {
 public:
  Evaluator(Meter& meter, Variables variables);
  ~Evaluator();
  Evaluator(const Evaluator&) = delete;
  Evaluator& operator=(const Evaluator&) = delete;
  std::string render(const Body& body);  // the body must outlive the evaluator

  // For the builtins.
  Meter& meter() { return meter_; }
  Value call(const Value& callee, const Arguments& arguments);
  Value filter(std::string_view name, const Value& input, const Arguments& arguments);
  bool test(std::string_view name, const Value& input, const Arguments& arguments);
  Value attribute(const Value& object, std::string_view name);  // object.name
  Value item(const Value& object, const Value& key);            // object[key]
  Value iterate(const Value& value);                            // a list of what a loop iterates over; the walk is charged
  Value make_namespace();

 private:
  enum class Flow : unsigned char { normal, leave, next };
  struct Deeper {  // one level of recursion
    explicit Deeper(Evaluator& evaluator);
    ~Deeper() { --depth; }
    int& depth;
  };

  Flow run(const Body& body);
  Flow run(const Statement& statement);
  Flow run_loop(const Statement& statement);
  Flow run_loop_items(const Statement& statement, const std::shared_ptr<Loop>& loop);
  Value loop_items(const Statement& statement);
  void run_set(const Statement& statement);
  void run_call_block(const Statement& statement);
  Flow run_scoped(const Statement& statement);
  Value captured(const Body& body);  // the body's output, in a scope of its own
  void assign(const Statement& statement, const Value& value);
  Value make_macro(const Statement& statement);
  Value call_macro(const Callable& macro, const Arguments& arguments);

  Value evaluate(const Expression& expression);
  Value evaluate_compound(const Expression& expression);
  Value evaluate_list(const Expression& expression);
  Value evaluate_dict(const Expression& expression);
  Value evaluate_unary(const Expression& expression);
  Value evaluate_binary(const Expression& expression);
  Value evaluate_compare(const Expression& expression);
  Value evaluate_slice(const Expression& expression);
  Value evaluate_call(const Expression& expression);
  Value evaluate_filter(const Expression& expression, const Value* block);
  Arguments arguments_of(const Expression& expression);
  Value lookup(std::string_view name);
  Value loop_attribute(const Value& object, std::string_view name);

  void name(std::string_view name, Value value) { scope_->names.insert_or_assign(name, std::move(value)); }
  Scope& push_scope(Scope* parent);
  void pop_scope(Scope* previous);

  Meter& meter_;
  Variables variables_;                       // their names are the keys of the first scope
  std::deque<Scope, Counted<Scope>> scopes_;  // front: the variables and the top-level names of the template
  Scope* scope_ = nullptr;
  std::vector<std::shared_ptr<Namespace>, Counted<std::shared_ptr<Namespace>>> namespaces_;  // cleared at the end: they may form cycles
  Text* out_ = nullptr;
  int depth_ = 0, line_ = 1;
};

// Arithmetic of two operands as Python does it; text is the operator.
Value arithmetic(Evaluator& evaluator, std::string_view text, const Value& a, const Value& b);

// Builtins by name; null: there is none. Names have static lifetime.
using Builtins = std::unordered_map<std::string_view, Callable::Function>;
using Builtin = Builtins::value_type;
const Builtins& functions();
const Builtins& filters();
const Builtins& tests();
const Builtins& methods_of(const Value& object);
inline const Builtin* find_in(const Builtins& table, std::string_view name) {
  auto found = table.find(name);
  return found == table.end() ? nullptr : &*found;
}
inline const Builtin* find_method(const Value& object, std::string_view name) { return find_in(methods_of(object), name); }

// Conversions of arguments. A text is charged for one pass over it; integers are clamped to a range in which sums do not wrap.
std::string_view text_of(Evaluator& evaluator, const Value& value, const char* what);
int64_t integer_of(const Value& value, const char* what);  // not clamped
int64_t clamped(int64_t value);
std::string_view text_argument(Evaluator& evaluator, const Arguments& arguments, size_t position, const char* name, const char* fallback);
int64_t integer_argument(const Arguments& arguments, size_t position, const char* name, int64_t fallback);
bool flag_argument(const Arguments& arguments, size_t position, const char* name, bool fallback);

// Strings, each charged.
Value as_string(Evaluator& evaluator, const Value& value);  // itself, or as it is printed
Text replaced(Evaluator& evaluator, std::string_view text, std::string_view from, std::string_view to, int64_t count);
std::string_view stripped(Evaluator& evaluator, std::string_view text, const Value* characters, bool left, bool right);
Text lower(Evaluator& evaluator, std::string_view text);
Text upper(Evaluator& evaluator, std::string_view text);
Text capitalized(Evaluator& evaluator, std::string_view text);
bool is_cased(Evaluator& evaluator, std::string_view text, bool as_upper);     // has letters of that case and none of the other
Value pair_of(Evaluator& evaluator, const Value& first, const Value& second);  // a tuple

}  // namespace mr::jinja
