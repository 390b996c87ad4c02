// The values of templates: Python's, as far as templates see them. Lists and dicts are immutable and shared, not copied;
// only a namespace can be written to. The nesting of values is bounded on construction, and with it every recursion over
// them, destructors included.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "text/chat_template.h"
#include "text/jinja/meter.h"

namespace mr::jinja {

class Value;
class Evaluator;
struct Undefined;
struct None {};
struct List;
struct Dict;
struct Namespace;
struct Loop;
struct Callable;

using Items = std::vector<Value, Counted<Value>>;
template <class Key, class Mapped>
using CountedMap = std::map<Key, Mapped, std::less<>, Counted<std::pair<const Key, Mapped>>>;

class Value {
 public:
  Value() : data_(None{}) {}
  Value(bool v) : data_(v) {}
  Value(int64_t v) : data_(v) {}
  Value(double v) : data_(v) {}
  Value(Text&& text);
  Value(Items&& items, bool tuple = false);
  Value(Dict&& dict);
  Value(Callable&& callable, Meter& meter);
  Value(std::shared_ptr<Namespace> v) : data_(std::move(v)) {}
  Value(std::shared_ptr<Loop> v) : data_(std::move(v)) {}
  template <class T>
  Value(T*) = delete;  // not a bool
  static Value text(Counted<char> pays, std::string_view text) { return Text(text, pays); }
  static Value undefined(Meter& meter, std::string_view name);  // name: what was looked up

  bool is_undefined() const { return holds<std::shared_ptr<const Undefined>>(); }
  bool is_none() const { return holds<None>(); }
  bool is_bool() const { return holds<bool>(); }
  bool is_int() const { return holds<int64_t>(); }
  bool is_float() const { return holds<double>(); }
  bool is_number() const { return is_int() || is_float() || is_bool(); }
  bool is_integral() const { return is_int() || is_bool(); }  // Python's bool is an int
  bool is_string() const { return holds<std::shared_ptr<const Text>>(); }
  bool is_list() const { return holds<std::shared_ptr<const List>>(); }
  bool is_dict() const { return holds<std::shared_ptr<const Dict>>(); }
  bool is_namespace() const { return holds<std::shared_ptr<Namespace>>(); }
  bool is_loop() const { return holds<std::shared_ptr<Loop>>(); }
  bool is_callable() const { return holds<std::shared_ptr<const Callable>>(); }

  std::string_view undefined_name() const;
  std::string_view string() const { return *std::get<std::shared_ptr<const Text>>(data_); }
  int64_t integer() const { return is_bool() ? std::get<bool>(data_) : std::get<int64_t>(data_); }
  double number() const { return is_float() ? std::get<double>(data_) : static_cast<double>(integer()); }
  std::span<const Value> items() const;  // of a list
  bool is_tuple() const;
  const Dict& dict() const { return *std::get<std::shared_ptr<const Dict>>(data_); }
  Namespace& space() const { return *std::get<std::shared_ptr<Namespace>>(data_); }
  Loop& loop() const { return *std::get<std::shared_ptr<Loop>>(data_); }
  const Callable& callable() const { return *std::get<std::shared_ptr<const Callable>>(data_); }

  bool truthy() const;
  const char* type_name() const;  // as Python names it
  int depth() const;              // nesting of lists, dicts, loops and methods; 0 for anything else

 private:
  template <class T>
  bool holds() const {
    return std::holds_alternative<T>(data_);
  }

  std::variant<std::shared_ptr<const Undefined>, None, bool, int64_t, double, std::shared_ptr<const Text>, std::shared_ptr<const List>,
               std::shared_ptr<const Dict>, std::shared_ptr<Namespace>, std::shared_ptr<Loop>, std::shared_ptr<const Callable>>
      data_;
};

struct Undefined {
  Text name;
};

struct List {
  Items items;
  bool tuple;
  int depth;
};

// Keeps the order of insertion. Keys are strings, numbers, booleans, none or tuples. The index is a tree: a hostile template
// could make hashes collide.
struct Dict {
  struct Key {
    char type;
    int64_t number;
    std::string_view text;  // of the entry's key, or of a tuple's repr
    auto operator<=>(const Key&) const = default;
  };
  std::vector<std::pair<Value, Value>, Counted<std::pair<Value, Value>>> entries;
  CountedMap<Key, size_t> index;
  Items tuples;  // the repr of each tuple that is a key
  int depth = 1;

  explicit Dict(Meter& meter) : entries(meter), index(meter), tuples(meter) {}
  void set(const Value& key, Value value);
  const Value* find(Meter& meter, const Value& key) const;
  const Value* find(Meter& meter, std::string_view key) const;

 private:
  size_t locate(Meter& meter, const Key& key) const;  // index of the entry; the number of entries: not found
};

struct Namespace {
  CountedMap<Text, Value> attributes;
};

// The variable `loop`.
struct Loop {
  Value items;  // a list
  int depth;
  size_t at = 0;
  Value changed = {};  // the arguments of the last loop.changed(); none once the loop has ended, so that no cycle remains
  bool running = true;
};

// Arguments of a call, a filter or a test.
struct Arguments {
  Items positional;
  std::vector<std::pair<std::string_view, Value>, Counted<std::pair<std::string_view, Value>>> named;  // names point into the template

  explicit Arguments(Meter& meter) : positional(meter), named(meter) {}
  // The argument at `position` or of that name; null if it was not given.
  const Value* get(size_t position, std::string_view name) const;
};

struct Callable {
  using Function = Value (*)(Evaluator&, const Value& self, const Arguments&);
  std::string_view name;        // points into a table or the template
  Function function = nullptr;  // a builtin or a method of `self`
  Value self = {};
  const struct Statement* macro = nullptr;  // else a macro, with the scope it was defined in
  struct Scope* scope = nullptr;
  int depth = 1;
};

// Each charges what it visits, shared parts on every visit.
bool equal(Meter& meter, const Value& a, const Value& b);
int compare(Meter& meter, const Value& a, const Value& b);  // < 0, 0, > 0; throws for values without an order
bool contains(Meter& meter, const Value& container, const Value& item);

void print(Text& out, const Value& value);       // Python's str()
void print_repr(Text& out, const Value& value);  // Python's repr()
std::string float_text(double value);            // Python's repr() of a float
struct JsonStyle {
  int indent = -1;  // < 0: on one line
  bool ensure_ascii = false, sort_keys = false;
  std::string_view item_separator = ", ", key_separator = ": ";
};
Text to_json(Meter& meter, const Value& value, const JsonStyle& style);  // Python's json.dumps()

// Json or OrderedJson; throws where it nests deeper than a value may.
template <class J>
Value from_json(Meter& meter, const J& json, int depth = 0);

// Finds one string in others, in time linear in both (Knuth, Morris and Pratt, 1977). `wanted` must outlive it.
class Search {
 public:
  Search(Meter& meter, std::string_view wanted);
  size_t first(std::string_view text, size_t from = 0) { return run(text, from, false); }  // npos: not found
  size_t last(std::string_view text) { return run(text, 0, true); }

 private:
  size_t run(std::string_view text, size_t pos, bool last);

  Meter& meter_;
  std::string_view wanted_;
  std::vector<uint32_t, Counted<uint32_t>> border_;  // [n]: the longest proper prefix of wanted[0, n) that is also its suffix
};

// Python indexes strings by character.
size_t length_of(Meter& meter, std::string_view text);
std::string_view substring(Meter& meter, std::string_view text, int64_t begin, int64_t end);  // characters; 0 <= begin, end

}  // namespace mr::jinja
