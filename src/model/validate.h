// Validates a configuration before anything computes with it: a spec that passes can be counted, planned and allocated without
// overflow, even one from a malicious file.
#pragma once

#include <string>

#include "model/spec.h"

namespace mr {

// Throws an Error that begins with `where` if a number is out of range. The bounds are far above any existing model.
void validate(const ModelSpec&, const std::string& where);

}  // namespace mr
