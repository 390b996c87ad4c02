// millrace bench --techniques.
#pragma once

#include <string>
#include <vector>

#include "cli/options.h"

namespace mr {

std::vector<std::string> technique_names();
int bench_techniques(const EngineFlags&, const std::vector<std::string>& chosen, int repeat, bool json);  // chosen: names, or "all"

}  // namespace mr
