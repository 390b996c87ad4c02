// millrace bench --techniques.
#pragma once

#include <string>
#include <vector>

#include "bench/measure.h"

namespace mr {

std::vector<std::string> technique_names();
int bench_techniques(const EngineSetup&, const std::vector<std::string>& chosen, int repeat, bool json);  // chosen: names, or "all"

}  // namespace mr
