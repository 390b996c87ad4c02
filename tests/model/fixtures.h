#pragma once

#include <algorithm>
#include <filesystem>
#include <vector>

#include "core/json.h"
#include "model/arch/arch.h"

namespace mr::test {

// All model fixtures with a known architecture.
inline std::vector<std::filesystem::path> model_fixtures() {
  std::vector<std::filesystem::path> paths;
  for (auto& entry : std::filesystem::directory_iterator(std::filesystem::path(MR_FIXTURES) / "models")) {
    if (std::filesystem::exists(entry.path() / "model.gguf")) paths.push_back(entry.path() / "model.gguf");
    if (!std::filesystem::exists(entry.path() / "config.json")) continue;
    std::string family = read_json(entry.path() / "config.json")["model_type"];
    if (std::ranges::count(arch_names(), family)) paths.push_back(entry.path());
  }
  return paths;
}

}  // namespace mr::test
