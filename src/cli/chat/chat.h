// A conversation in the terminal, or, with piped input, one message a line.
#pragma once

#include <string>

#include "cli/options.h"

namespace mr {

struct ChatFlags {
  EngineFlags engine;
  SamplingFlags sampling;
  std::string system, template_file;
  bool no_history = false;
};

void add_chat_flags(CLI::App&, ChatFlags&);
int chat(ChatFlags&);

}  // namespace mr
