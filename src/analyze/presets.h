// Models by name: config.json files of published models, parsed by their architecture's code, and variants of them.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "model/spec.h"

namespace mr {

// Hypothetical changes to a model. 0: unchanged.
struct WhatIf {
  int kv_heads = 0;                   // of every attention layer
  int window = 0;                     // of every attention layer but the global ones
  int global_every = 0;               // with window: every n-th layer keeps global attention
  int kv_share = 0;                   // successive layers of one kind that use the keys and values of the first
  int experts = 0, experts_used = 0;  // every feed-forward becomes a mixture of experts of its size
};
ModelSpec apply(const WhatIf&, ModelSpec);  // throws for changes that the model does not allow

struct Preset {
  std::string_view name, config;  // config: the text of config.json
  WhatIf what_if{};
};
std::span<const Preset> presets();
const Preset* find_preset(std::string_view name);  // null: none
std::string preset_names();
ModelSpec spec_of(const Preset&);

}  // namespace mr
