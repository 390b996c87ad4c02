// Functions for a model whose template has no place for them: shown in the system prompt, in the form that most models were taught
// (Hermes), and so are a conversation's earlier calls and their results. ToolCallReader reads what the model answers.
#pragma once

#include "core/json.h"

namespace mr {

void put_tools_into_prompt(OrderedJson& messages, const OrderedJson& tools);

}  // namespace mr
