// The JSON types.
#pragma once

#include <nlohmann/json.hpp>

namespace mr {
using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;  // objects keep the order of insertion
}  // namespace mr

// The library's destructor allocates a worklist for a value's children and terminates the process when memory runs out. Clients'
// documents are OrderedJson: this one allocates nothing for the depths that clients may send.
template <>
void nlohmann::ordered_json::json_value::destroy(nlohmann::detail::value_t type);
