#include "model/config.h"

#include <cmath>
#include <limits>

namespace mr {

constexpr size_t kMaxList = 8192;  // entries: more than any model has layers or pairs of rotated dimensions

// A value as shown in messages.
static std::string shown(const Json& j) {
  if (j.is_structured()) return j.is_array() ? "a list" : "an object";
  if (j.is_number_float()) return fmt::format("{:g}", j.get<double>());
  return j.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// A nonnegative integer that fits in an int32.
static bool is_count(const Json& j) {
  if (j.is_number_unsigned()) return j.get<uint64_t>() <= INT32_MAX;
  return j.is_number_integer() && j.get<int64_t>() >= 0 && j.get<int64_t>() <= INT32_MAX;
}

static bool is_float(const Json& j) { return j.is_number() && std::abs(j.get<double>()) <= double(std::numeric_limits<float>::max()); }

const Json& Config::at(const char* name) const {
  require(has(name), "'{}' is missing", name);
  return json_.at(name);
}

int64_t Config::integer(const char* name) const {
  const Json& j = at(name);
  require(j.is_number_integer(), "'{}' must be a whole number, not {}", name, shown(j));
  require(is_count(j), "'{}' is {}, which is out of range", name, shown(j));
  return j.get<int64_t>();
}

int64_t Config::positive(const char* name) const {
  int64_t n = integer(name);
  require(n > 0, "'{}' must not be 0", name);
  return n;
}

int64_t Config::layers() const {
  constexpr int64_t kMost = 4096;
  int64_t n = positive("num_hidden_layers");
  require(n <= kMost, "'num_hidden_layers' is {}, but no model has more than {} layers", n, kMost);
  return n;
}

double Config::number(const char* name) const {
  const Json& j = at(name);
  require(j.is_number(), "'{}' must be a number, not {}", name, shown(j));
  require(is_float(j), "'{}' is {}, which is out of range", name, shown(j));
  return j.get<double>();
}

bool Config::boolean(const char* name, bool otherwise) const {
  if (!has(name)) return otherwise;
  require(at(name).is_boolean(), "'{}' must be true or false, not {}", name, shown(at(name)));
  return at(name).get<bool>();
}

std::string Config::text(const char* name, std::string otherwise) const {
  if (!has(name)) return otherwise;
  require(at(name).is_string(), "'{}' must be text, not {}", name, shown(at(name)));
  return at(name).get<std::string>();
}

std::vector<float> Config::numbers(const char* name) const {
  std::vector<float> list;
  if (!has(name)) return list;
  require(at(name).is_array(), "'{}' must be a list of numbers", name);
  require(at(name).size() <= kMaxList, "'{}' has {} entries, but at most {} are possible", name, at(name).size(), kMaxList);
  for (const Json& j : at(name)) {
    require(is_float(j), "'{}' must be a list of numbers, but holds {}", name, shown(j));
    list.push_back(j.get<float>());
  }
  return list;
}

std::vector<int32_t> Config::integers(const char* name) const {
  std::vector<int32_t> list;
  if (!has(name)) return list;
  if (!at(name).is_array()) return {int32_t(integer(name))};
  require(at(name).size() <= kMaxList, "'{}' has {} entries, but at most {} are possible", name, at(name).size(), kMaxList);
  for (const Json& j : at(name)) {
    require(is_count(j), "'{}' holds {}, which is not a whole number in range", name, shown(j));
    list.push_back(j.get<int32_t>());
  }
  return list;
}

int Config::narrow(double n, std::string_view what) const {
  require(n >= 0 && n <= INT32_MAX, "{} is {:g}, which is out of range", what, n);
  return int(n);
}

Config Config::object(const char* name) const {
  require(at(name).is_object(), "'{}' must be an object", name);
  return {at(name), where_ + ": " + name};
}

}  // namespace mr
