// JSON as the rest of the code names it.
#pragma once

#include <nlohmann/json.hpp>

namespace mr {
using Json = nlohmann::json;
}
