// The page docs/formats.md: which weight formats are read, run and written.
#pragma once

#include <string>

namespace mr {

std::string formats_page();

}  // namespace mr
