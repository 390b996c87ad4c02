// Getting a model by name, for commands that take one.
#pragma once

#include <string>

namespace mr {

// A model that is not on this machine, but has a hub's name, is pulled, after saying so on stderr. Throws what pull_model() throws.
void pull_unless_here(const std::string& model);

}  // namespace mr
