// One prompt, one or more answers.
#pragma once

#include <string>

#include "cli/options.h"

namespace mr {

struct GenerateFlags {
  EngineFlags engine;
  SamplingFlags sampling;
  PromptFlags prompt;
  std::string system, template_file;
  bool chat = false, json = false;
  bool plain_without_template = false;  // with chat: without a template the prompt is used as it is
};

int generate(GenerateFlags&);

}  // namespace mr
