// JSON as the rest of the code names it.
#pragma once

#include <nlohmann/json.hpp>

namespace mr {
using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;  // objects keep the order in which they were written
}  // namespace mr
