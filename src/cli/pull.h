// Getting a model by name, for commands that take one.
#pragma once

#include <filesystem>
#include <string>

namespace mr {

// A model that is here, like find_model(); one that is not, but has a hub's name, is pulled, after saying so on stderr.
std::filesystem::path find_or_pull(const std::string& model);

}  // namespace mr
