// Hostile templates meant to stall or crash the server, by what they abuse.
#pragma once

#include <string>
#include <vector>

namespace mr {

struct HostileTemplate {
  const char* name;
  std::string source;
};

std::vector<HostileTemplate> hostile_templates();

}  // namespace mr
