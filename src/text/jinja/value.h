// What a template computes with: Python's values as far as templates see them. Lists and dicts never change once made,
// so they are shared, not copied; only a namespace can be written to.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "text/chat_template.h"

namespace mr::jinja {

class Value;
class Evaluator;
struct Arguments;

struct Undefined {
  std::string name;  // what was looked up
};
struct None {};
struct List;
struct Dict;
struct Namespace;
struct Callable;

class Value {
 public:
  Value() : data_(None{}) {}
  Value(Undefined v) : data_(std::make_shared<const Undefined>(std::move(v))) {}
  Value(bool v) : data_(v) {}
  Value(int64_t v) : data_(v) {}
  Value(double v) : data_(v) {}
  Value(std::string v) : data_(std::make_shared<const std::string>(std::move(v))) {}
  Value(const char* v) : Value(std::string(v)) {}
  Value(std::vector<Value> items, bool tuple = false);
  Value(std::shared_ptr<const Dict> v) : data_(std::move(v)) {}
  Value(std::shared_ptr<Namespace> v) : data_(std::move(v)) {}
  Value(std::shared_ptr<const Callable> v) : data_(std::move(v)) {}
  static Value undefined(std::string name) { return Value(Undefined{std::move(name)}); }

  bool is_undefined() const { return std::holds_alternative<std::shared_ptr<const Undefined>>(data_); }
  bool is_none() const { return std::holds_alternative<None>(data_); }
  bool is_bool() const { return std::holds_alternative<bool>(data_); }
  bool is_int() const { return std::holds_alternative<int64_t>(data_); }
  bool is_float() const { return std::holds_alternative<double>(data_); }
  bool is_number() const { return is_int() || is_float() || is_bool(); }
  bool is_integral() const { return is_int() || is_bool(); }  // Python's bool is an int
  bool is_string() const { return std::holds_alternative<std::shared_ptr<const std::string>>(data_); }
  bool is_list() const { return std::holds_alternative<std::shared_ptr<const List>>(data_); }
  bool is_dict() const { return std::holds_alternative<std::shared_ptr<const Dict>>(data_); }
  bool is_namespace() const { return std::holds_alternative<std::shared_ptr<Namespace>>(data_); }
  bool is_callable() const { return std::holds_alternative<std::shared_ptr<const Callable>>(data_); }

  const std::string& undefined_name() const { return std::get<std::shared_ptr<const Undefined>>(data_)->name; }
  const std::string& string() const { return *std::get<std::shared_ptr<const std::string>>(data_); }
  int64_t integer() const { return is_bool() ? std::get<bool>(data_) : std::get<int64_t>(data_); }
  double number() const { return is_float() ? std::get<double>(data_) : static_cast<double>(integer()); }
  const std::vector<Value>& items() const;  // of a list
  bool is_tuple() const;
  const Dict& dict() const { return *std::get<std::shared_ptr<const Dict>>(data_); }
  Namespace& space() const { return *std::get<std::shared_ptr<Namespace>>(data_); }
  const Callable& callable() const { return *std::get<std::shared_ptr<const Callable>>(data_); }

  bool truthy() const;
  const char* type_name() const;  // as Python names it
  int depth() const;              // how deeply lists and dicts nest: 0 for anything else
  size_t weight() const;          // what walking over all of it costs, shared parts counted each time

 private:
  std::variant<std::shared_ptr<const Undefined>, None, bool, int64_t, double, std::shared_ptr<const std::string>,
               std::shared_ptr<const List>, std::shared_ptr<const Dict>, std::shared_ptr<Namespace>, std::shared_ptr<const Callable>>
      data_;
};

struct List {
  std::vector<Value> items;
  bool tuple = false;
  int depth = 1;
  size_t weight = 1;
};

// Keeps the order of insertion. Keys are strings, numbers, booleans or none.
struct Dict {
  std::vector<std::pair<Value, Value>> entries;
  std::unordered_map<std::string, size_t> index;
  int depth = 1;
  size_t weight = 1;

  void set(const Value& key, Value value);
  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const { return find(Value(std::string(key))); }
};

struct Namespace {
  std::vector<std::pair<std::string, Value>> attributes;
};

// Arguments of a call, of a filter and of a test.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;

  // The argument at `position` or of that name; null if it was not given.
  const Value* get(size_t position, std::string_view name) const;
};

struct Callable {
  using Function = Value (*)(Evaluator&, const Value& self, const Arguments&);
  std::string name;
  Function function = nullptr;  // a builtin or a method of `self`
  Value self;
  const struct Statement* macro = nullptr;  // else a macro, with the scope it was defined in
  struct Scope* scope = nullptr;
};

bool equal(const Value& a, const Value& b);
int compare(const Value& a, const Value& b);  // < 0, 0, > 0; throws for values without an order
bool contains(const Value& container, const Value& item);

std::string to_string(const Value& value);  // Python's str()
std::string to_repr(const Value& value);    // Python's repr()
std::string float_text(double value);       // Python's repr() of a float
// Json or OrderedJson; throws where it nests deeper than a value may.
template <class J>
Value from_json(const J& json, int depth = 0);
struct JsonStyle {
  int indent = -1;  // < 0: on one line
  bool ensure_ascii = false, sort_keys = false;
  std::string item_separator = ", ", key_separator = ": ";
};
std::string to_json(const Value& value, const JsonStyle& style);  // Python's json.dumps()

// Python indexes strings by character.
size_t length_of(std::string_view text);
std::string substring(const std::string& text, int64_t begin, int64_t end);  // characters; 0 <= begin <= end <= length

}  // namespace mr::jinja
