// The memory plan as a paragraph.
#pragma once

#include "engine/engine.h"

namespace mr {

std::string indented(std::string_view text, std::string_view by);  // every line
// What an engine with these options would allocate on this machine's CPU; or why it cannot.
std::string plan_text(const Model& outline, const EngineOptions&);

}  // namespace mr
