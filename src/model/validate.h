// The one gate between a configuration and everything that computes with it: a spec that passes can be counted, planned and
// allocated without an overflow, whatever file it came from.
#pragma once

#include <string>

#include "model/spec.h"

namespace mr {

// Throws one sentence that begins with `where` when a number is absurd. The bounds lie far above any model that exists.
void validate(const ModelSpec&, const std::string& where);

}  // namespace mr
