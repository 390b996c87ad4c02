// Reads a model's configuration with errors that name the field. GGUF metadata arrives translated to the names of
// config.json (arch/gguf.cpp).
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/json.h"

namespace mr {

class Config {
 public:
  Config(const Json& json, std::string where) : json_(json), where_(std::move(where)) {}

  bool has(const char* name) const { return json_.contains(name) && !json_.at(name).is_null(); }
  int64_t integer(const char* name) const;  // 0 ... 2^31 - 1
  int64_t integer(const char* name, int64_t otherwise) const { return has(name) ? integer(name) : otherwise; }
  int64_t positive(const char* name) const;
  int64_t layers() const;                 // num_hidden_layers, bounded: a broken file must not exhaust memory
  double number(const char* name) const;  // within the range of a float
  double number(const char* name, double otherwise) const { return has(name) ? number(name) : otherwise; }
  bool boolean(const char* name, bool otherwise) const;
  std::string text(const char* name, std::string otherwise) const;
  std::vector<float> numbers(const char* name) const;     // empty if absent
  std::vector<int32_t> integers(const char* name) const;  // an integer counts as a list of one
  int narrow(double n, std::string_view what) const;      // a value computed from fields, as an int; throws if out of range
  Config object(const char* name) const;
  const Json& json() const { return json_; }
  const std::string& where() const { return where_; }

  template <class... Args>
  void require(bool ok, fmt::format_string<Args...> text, Args&&... args) const {
    if (!ok) throw Error(sentence("{}: ", where_) + sentence(text, std::forward<Args>(args)...));
  }

 private:
  const Json& at(const char* name) const;
  const Json& json_;
  std::string where_;
};

}  // namespace mr
