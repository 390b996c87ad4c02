#include "serve/fields.h"

namespace mr {

bool Nesting::step(char c) {
  if (is_escaped) {
    is_escaped = false;
  } else if (is_quoted) {
    is_escaped = c == '\\';
    is_quoted = c != '"';
  } else if (c == '"') {
    is_quoted = true;
  } else if (c == '[' || c == '{') {
    deepest = std::max(deepest, ++depth);
  } else if (c == ']' || c == '}') {
    return --depth == 0;
  }
  return false;
}

int deepest_nesting(std::string_view json) {
  Nesting nesting;
  for (char c : json) nesting.step(c);
  return nesting.deepest;
}

OrderedJson parse_body(std::string_view body, const OnGrowth& on_growth) {
  OrderedJson json;
  try {
    json = parse_json<OrderedJson>(body, "the body", {}, on_growth);
  } catch (const ApiError&) {
    throw;
  } catch (const Stopped&) {
    throw;
  } catch (const Error& e) {
    refuse("", "{}", e.what());
  }
  if (!json.is_object()) refuse("", "the body must be a JSON object, not {}", json.type_name());
  return json;
}

Fields::Fields(const OrderedJson& object, std::string prefix) : object_(object), prefix_(std::move(prefix)) {
  if (!object.is_object()) {
    std::string name = prefix_.substr(0, prefix_.find_last_not_of('.') + 1);
    refuse(name, "{} must be an object, not {}", name, object.type_name());
  }
}

const OrderedJson* Fields::find(const std::string& name) const {
  auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

bool Fields::flag(const std::string& name, bool otherwise) const {
  const OrderedJson* value = find(name);
  if (!value) return otherwise;
  if (!value->is_boolean()) refuse(path(name), "{} must be true or false, not {}", path(name), value->type_name());
  return value->get<bool>();
}

double Fields::number(const std::string& name, double otherwise, double low, double high) const {
  const OrderedJson* value = find(name);
  if (!value) return otherwise;
  if (!value->is_number()) refuse(path(name), "{} must be a number, not {}", path(name), value->type_name());
  double x = value->get<double>();
  if (!(x >= low && x <= high)) refuse(path(name), "{} must be between {} and {}, not {}", path(name), low, high, x);
  return x;
}

int64_t Fields::integer(const std::string& name, int64_t otherwise, int64_t low, int64_t high) const {
  const OrderedJson* value = find(name);
  if (!value) return otherwise;
  if (!value->is_number_integer()) refuse(path(name), "{} must be an integer, not {}", path(name), value->type_name());
  bool huge = value->is_number_unsigned() && value->get<uint64_t>() > uint64_t(INT64_MAX);
  if (huge || value->get<int64_t>() < low || value->get<int64_t>() > high)
    refuse(path(name), "{} must be between {} and {}, not {}", path(name), low, high, value->dump());
  return value->get<int64_t>();
}

std::string Fields::text(const std::string& name, size_t max_bytes) const {
  const OrderedJson* value = find(name);
  if (!value) return {};
  if (!value->is_string()) refuse(path(name), "{} must be a string, not {}", path(name), value->type_name());
  const std::string& s = value->get_ref<const std::string&>();
  if (s.size() > max_bytes) refuse(path(name), "{} has {} bytes, but at most {} are allowed", path(name), s.size(), max_bytes);
  return s;
}

const OrderedJson* Fields::list(const std::string& name, size_t max_items) const {
  const OrderedJson* value = find(name);
  if (!value) return nullptr;
  if (!value->is_array()) refuse(path(name), "{} must be a list, not {}", path(name), value->type_name());
  if (value->size() > max_items) refuse(path(name), "{} has {} items, but at most {} are allowed", path(name), value->size(), max_items);
  return value;
}

}  // namespace mr
