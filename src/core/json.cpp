#include "core/json.h"

#include <utility>
#include <vector>

namespace {

using mr::OrderedJson;

constexpr int max_recursion = 256;  // levels; untrusted documents have 64 at most

template <class Visit>
void each_child(OrderedJson& json, Visit visit) {
  if (json.is_array())
    for (OrderedJson& child : json.get_ref<OrderedJson::array_t&>()) visit(child);
  if (json.is_object())
    for (auto& [key, child] : json.get_ref<OrderedJson::object_t&>()) visit(child);
}

// As the library does it: iteratively, with a worklist.
void take_apart_by_list(OrderedJson& json) {
  std::vector<OrderedJson> rest;
  auto put_off = [&](OrderedJson& child) { rest.push_back(std::move(child)); };
  each_child(json, put_off);
  json.clear();
  while (!rest.empty()) {
    OrderedJson next = std::move(rest.back());
    rest.pop_back();
    each_child(next, put_off);
    if (next.is_structured()) next.clear();
  }
}

void take_apart(OrderedJson& json, int recursion) {
  if (!json.is_structured() || json.empty()) return;
  if (recursion == max_recursion) return take_apart_by_list(json);
  each_child(json, [&](OrderedJson& child) { take_apart(child, recursion + 1); });
  json.clear();
}

}  // namespace

template <>
void nlohmann::ordered_json::json_value::destroy(nlohmann::detail::value_t type) {
  using nlohmann::detail::value_t;
  switch (type) {
    case value_t::object:
      if (object)
        for (auto& [key, child] : *object) take_apart(child, 0);
      delete object;
      break;
    case value_t::array:
      if (array)
        for (OrderedJson& child : *array) take_apart(child, 0);
      delete array;
      break;
    case value_t::string:
      delete string;
      break;
    case value_t::binary:
      delete binary;
      break;
    default:
      break;
  }
}
