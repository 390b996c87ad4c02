#include "model/config.h"

namespace mr {

const Json& Config::at(const char* name) const {
  require(has(name), "'{}' is missing", name);
  return json_.at(name);
}

int64_t Config::integer(const char* name) const {
  const Json& j = at(name);
  require(j.is_number_integer(), "'{}' must be a whole number, not {}", name, j.dump());
  int64_t n = j.get<int64_t>();
  require(n >= 0 && n <= INT32_MAX, "'{}' is {}, which is out of range", name, j.dump());
  return n;
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
  require(j.is_number(), "'{}' must be a number, not {}", name, j.dump());
  return j.get<double>();
}

bool Config::boolean(const char* name, bool otherwise) const {
  if (!has(name)) return otherwise;
  require(at(name).is_boolean(), "'{}' must be true or false, not {}", name, at(name).dump());
  return at(name).get<bool>();
}

std::string Config::text(const char* name, std::string otherwise) const {
  if (!has(name)) return otherwise;
  require(at(name).is_string(), "'{}' must be text, not {}", name, at(name).dump());
  return at(name).get<std::string>();
}

std::vector<float> Config::numbers(const char* name) const {
  std::vector<float> list;
  if (!has(name)) return list;
  require(at(name).is_array(), "'{}' must be a list of numbers", name);
  for (const Json& j : at(name)) {
    require(j.is_number(), "'{}' must be a list of numbers, but holds {}", name, j.dump());
    list.push_back(j.get<float>());
  }
  return list;
}

std::vector<int32_t> Config::integers(const char* name) const {
  std::vector<int32_t> list;
  if (!has(name)) return list;
  if (!at(name).is_array()) return {int32_t(integer(name))};
  for (const Json& j : at(name)) {
    require(j.is_number_integer() && j.get<int64_t>() >= 0 && j.get<int64_t>() <= INT32_MAX,
            "'{}' holds {}, which is not a whole number in range", name, j.dump());
    list.push_back(j.get<int32_t>());
  }
  return list;
}

Config Config::object(const char* name) const {
  require(at(name).is_object(), "'{}' must be an object", name);
  return {at(name), where_ + ": " + name};
}

}  // namespace mr
