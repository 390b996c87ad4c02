// Runs a parsed template. All that it makes is charged to one budget, so that no template runs or grows for ever.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/ast.h"

namespace mr::jinja {

struct Scope {
  Scope* parent = nullptr;
  std::unordered_map<std::string, Value> names;
  bool captured = false;  // a macro was defined here and may still look it up
};

class Evaluator {
 public:
  explicit Evaluator(std::vector<std::pair<std::string, Value>> variables);
  ~Evaluator();
  Evaluator(const Evaluator&) = delete;
  Evaluator& operator=(const Evaluator&) = delete;
  std::string render(const Body& body);

  // For the builtins.
  void charge(size_t bytes);  // call before making something of that size
  Value call(const Value& callee, const Arguments& arguments);
  Value filter(const std::string& name, const Value& input, const Arguments& arguments);
  bool test(const std::string& name, const Value& input, const Arguments& arguments);
  Value attribute(const Value& object, const std::string& name);  // object.name
  Value item(const Value& object, const Value& key);              // object[key]
  std::vector<Value> iterate(const Value& value);
  Value make_namespace();

 private:
  enum class Flow : unsigned char { normal, leave, next };
  struct Deeper;

  Flow run(const Body& body);
  Flow run(const Statement& statement);
  Flow run_loop(const Statement& statement);
  Flow run_loop_items(const Statement& statement, const std::vector<Value>& items);
  std::vector<Value> loop_items(const Statement& statement);
  void set_loop_attributes(Namespace& loop, const std::vector<Value>& items, size_t at);
  void run_set(const Statement& statement);
  void run_call_block(const Statement& statement);
  Flow run_scoped(const Statement& statement);
  std::string captured(const Body& body);  // what the body writes, in a scope of its own
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
  Value lookup(const std::string& name);

  Scope& push_scope(Scope* parent);
  void pop_scope(Scope* previous);

  std::deque<Scope> scopes_;  // front: the context and what the template sets at its top
  Scope* scope_ = nullptr;
  std::vector<std::shared_ptr<Namespace>> namespaces_;  // emptied at the end: they may hold one another in circles
  std::string* out_ = nullptr;
  size_t spent_ = 0;
  int depth_ = 0, line_ = 1;
};

// Arithmetic of two operands as Python does it; text is the operator.
Value arithmetic(Evaluator& evaluator, const std::string& text, const Value& a, const Value& b);

// Builtins by name; null: there is none.
Callable::Function find_function(const std::string& name);
Callable::Function find_filter(const std::string& name);
Callable::Function find_test(const std::string& name);
Callable::Function find_method(const Value& object, const std::string& name);

// What builtins ask of their arguments.
const std::string& text_of(const Value& value, const char* what);
int64_t integer_of(const Value& value, const char* what);
std::string text_argument(const Arguments& arguments, size_t position, const char* name, const char* fallback);
int64_t integer_argument(const Arguments& arguments, size_t position, const char* name, int64_t fallback);
bool flag_argument(const Arguments& arguments, size_t position, const char* name, bool fallback);
std::string replaced(Evaluator& evaluator, const std::string& text, const std::string& from, const std::string& to, int64_t count);
std::string stripped(const std::string& text, const Value* characters, bool left, bool right);
std::string capitalized(const std::string& text);

}  // namespace mr::jinja
