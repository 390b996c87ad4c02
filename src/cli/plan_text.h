// The memory plan as a paragraph.
#pragma once

#include "engine/engine.h"

namespace mr {

std::string indented(std::string_view text, std::string_view by);  // each line
// The allocations of an engine with these options on this machine's CPU; or why it does not fit.
std::string plan_text(const Model& outline, const EngineOptions&);

}  // namespace mr
