// A family is data: how its configuration becomes a ModelSpec, and what its tensors are called. One file per family, one
// line in the registry.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "io/checkpoint.h"
#include "model/config.h"
#include "model/spec.h"

namespace mr {

// Which of a role's tensors: that of a layer, and of one of its experts.
struct Place {
  int layer = 0, expert = 0;
  Place(int layer = 0, int expert = 0) : layer(layer), expert(expert) {}
};

// From a tensor's role ("q", "down", "final_norm") to its name in files; the first "{}" stands for the layer, the second for
// the expert; what has no place in the name is stacked in one tensor. ".weight" or ".bias" is appended, unless the name is found as it is.
struct NameMap {
  struct Entry {
    std::string_view role, pattern;
  };
  std::vector<Entry> entries;
  bool permuted_qk = false;                                     // GGUF's Llama files: rows of q and k lie in pairs for interleaved rope
  std::string_view model_prefix = "model.", other_prefix = "";  // of patterns that begin with "model.", and of the others

  const Entry* find(std::string_view role) const;
  std::string name(std::string_view role, Place) const;  // throws when the family has no such role
};

// A family's GGUF files.
struct GgufFamily {
  std::string_view name;  // general.architecture; empty: no such files are known
  NameMap (*names)() = nullptr;
  void (*complete)(const Checkpoint&, Json& config) = nullptr;  // what config_from_gguf cannot know of every family; may be null
};

struct Arch {
  std::string_view name;  // config.json's model_type
  ModelSpec (*spec)(const Config&);
  NameMap (*names)();  // Hugging Face names
  GgufFamily gguf;
};

const Arch& arch_named(std::string_view name);  // throws, listing what is known
std::vector<std::string_view> arch_names();

struct Described {
  ModelSpec spec;
  NameMap names;
};
Described describe(const Checkpoint&);                              // by config.json or GGUF metadata
ModelSpec spec_from(const Json& config, const std::string& where);  // config.json alone; errors name `where`

// GGUF metadata under the names of config.json.
Json config_from_gguf(const Checkpoint&);
// The same, with what the family knows of its files.
Json whole_config_of_gguf(const Checkpoint&);
const Arch& arch_of_gguf(const Checkpoint&);
// Of the hybrids, whose files list the heads of every layer's keys and values: which layers have any.
std::vector<bool> attending_layers(const Json& config);

// What most decoders share; a family changes what is its own.
struct DecoderTraits {
  bool qkv_bias = false, out_bias = false, mlp_bias = false, qk_norm = false;
  const char* activation = "silu";  // unless the configuration names one
};
ModelSpec decoder_spec(const Config&, const DecoderTraits&);
NameMap decoder_names();
NameMap decoder_gguf_names();
NameMap with_gguf_experts(NameMap);  // whose experts lie in one tensor a layer
Activation activation_from(const Config&, const std::string& name);
MoeSpec moe_from(const Config&, const char* count, bool renormalize);  // `count` names the field with the number of experts

}  // namespace mr
