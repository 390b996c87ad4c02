// JSON as the rest of the code names it.
#pragma once

#include <nlohmann/json.hpp>

namespace mr {
using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;  // objects keep the order in which they were written
}  // namespace mr

// The library's own destructor allocates a list for a value's children and ends the process where there is no memory for it. What
// clients send is held in OrderedJson: this one needs no memory for documents of any depth that a client may send.
template <>
void nlohmann::ordered_json::json_value::destroy(nlohmann::detail::value_t type);
