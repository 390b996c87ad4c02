// Models by name: the config.json of published ones, read by their family's own code, and shapes made of them by a what-if.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "model/spec.h"

namespace mr {

// Changes to a model that was never trained that way. 0 or empty: as it is.
struct WhatIf {
  int kv_heads = 0;                   // of every attention layer
  int window = 0;                     // of every attention layer but the global ones
  int global_every = 0;               // with window: every n-th layer still sees everything
  int kv_share = 0;                   // so many successive layers of one kind use the keys and values of their first
  int experts = 0, experts_used = 0;  // every feed-forward becomes a choice of experts of its own size
};
ModelSpec apply(const WhatIf&, ModelSpec);  // throws for what the model cannot be

struct Preset {
  std::string_view name, config;  // config: the text of config.json
  WhatIf what_if{};
};
std::span<const Preset> presets();
const Preset* find_preset(std::string_view name);  // null if there is none
std::string preset_names();
ModelSpec spec_of(const Preset&);

}  // namespace mr
