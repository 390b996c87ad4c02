// Validated access to a client's JSON: every field has a type and a range, and errors name the field.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "core/bounded_json.h"
#include "serve/api_error.h"

namespace mr {

// Lists and objects of a JSON text, counted without parsing it.
// How lists and objects nest in JSON, byte by byte.
struct Nesting {
  int depth = 0, deepest = 0;
  bool is_quoted = false, is_escaped = false;
  bool step(char);  // true: a list or object at the top has ended
};
int deepest_nesting(std::string_view json);

// The body as JSON: an object within the limits, or a 400.
OrderedJson parse_body(std::string_view body, const OnGrowth& = {});

// The members of an object. A member that is null counts as absent.
class Fields {
 public:
  explicit Fields(const OrderedJson& object, std::string prefix = {});

  const OrderedJson* find(const std::string& name) const;  // null: absent
  bool flag(const std::string& name, bool otherwise) const;
  double number(const std::string& name, double otherwise, double low, double high) const;
  int64_t integer(const std::string& name, int64_t otherwise, int64_t low, int64_t high) const;
  std::string text(const std::string& name, size_t max_bytes) const;  // empty: absent
  // A list of at most max_items; null: absent.
  const OrderedJson* list(const std::string& name, size_t max_items) const;
  std::string path(const std::string& name) const { return prefix_ + name; }

 private:
  const OrderedJson& object_;
  std::string prefix_;
};

}  // namespace mr
