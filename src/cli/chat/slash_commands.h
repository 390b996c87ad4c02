// The commands of a chat: a single line that begins with a slash and a word. Everything else goes to the model.
#pragma once

#include <string>
#include <vector>

#include "cli/chat/session.h"

namespace mr {

bool is_slash_command(const std::string& line);
int run_slash_command(const std::string& line, ChatSession&);  // throws Error; returns how often Ctrl-C was pressed meanwhile
std::vector<std::string> slash_completions(const std::string& beginning);

}  // namespace mr
