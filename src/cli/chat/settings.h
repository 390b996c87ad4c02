// The settings of /set: sampling, by the names of flags and the API, and display.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "decode/sampling.h"

namespace mr {

struct ChatSettings {
  SamplingParams sampling;
  std::optional<bool> think;  // enable_thinking of the template; none: its default
  bool verbose = true;        // speed after every answer
};

std::vector<std::string_view> setting_names();
void change_setting(ChatSettings&, const std::string& name, const std::string& value, int vocab);  // throws Error, changing nothing
std::string settings_text(const ChatSettings&);                                                    // one a line

}  // namespace mr
