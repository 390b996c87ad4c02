// What /set changes: sampling by the names that flags and the API have, and how the terminal shows things.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "decode/sampling.h"

namespace mr {

struct ChatSettings {
  SamplingParams sampling;
  std::optional<bool> think;  // given to the template as enable_thinking; none: as the template likes
  bool verbose = true;        // speed after every answer
};

std::vector<std::string_view> setting_names();
void change_setting(ChatSettings&, const std::string& name, const std::string& value, int vocab);  // throws Error; then nothing changed
std::string settings_text(const ChatSettings&);                                                    // one a line

}  // namespace mr
