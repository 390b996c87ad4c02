// Pulling a model by name, for commands that take one.
#pragma once

#include <string>

namespace mr {

// Pulls a model with a hub's name, or the default model (empty), that is not on this machine, after a note on stderr. Throws what
// pull_model() throws.
void pull_unless_here(const std::string& model);

}  // namespace mr
