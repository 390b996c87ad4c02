// Tools for a model whose template does not show them: described in the system prompt in the most common form (Hermes), as are earlier
// calls and their results. ToolCallReader parses the answers.
#pragma once

#include "core/json.h"

namespace mr {

void put_tools_into_prompt(OrderedJson& messages, const OrderedJson& tools);

}  // namespace mr
