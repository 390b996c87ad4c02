// Reading a client's JSON with suspicion: every field has a type and a range, and what is wrong is said with the field's name.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "core/error.h"
#include "text/chat_template.h"

namespace mr {

// Becomes an answer of OpenAI's shape: {"error": {"message", "type", "param", "code"}}.
struct ApiError : Error {
  ApiError(int status, const std::string& message, std::string param = {}, std::string code = {})
      : Error(message), status(status), param(std::move(param)), code(std::move(code)) {}
  int status;
  std::string param, code;  // empty: null
};

std::string error_body(const ApiError&);

// 400, what the client can mend.
template <class... Args>
[[noreturn]] void refuse(std::string param, fmt::format_string<Args...> text, Args&&... args) {
  throw ApiError(400, fmt::format(text, std::forward<Args>(args)...), std::move(param));
}

// Lists and objects of a JSON text, counted without parsing it.
struct Nesting {
  int deepest = 0;
  size_t first_end = std::string_view::npos;  // behind the first list or object; npos: it is not over
};
Nesting nesting_of(std::string_view json);

// The body as JSON. Nesting is counted before anything is built.
OrderedJson parse_body(std::string_view body, int max_depth = 64);

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
