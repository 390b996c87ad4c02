// How the model's makers say that it is to be sampled: generation_config.json, or general.sampling.* of a GGUF file. What a user asks
// for goes before it. Lengths and ends are not among it: eos_token_id is read with the tokenizer's.
#pragma once

#include <optional>
#include <string>

#include "core/json.h"
#include "decode/sampling.h"

namespace mr {

struct GenerationDefaults {
  std::optional<float> temperature, top_p, min_p, repetition_penalty;
  std::optional<int> top_k;

  SamplingParams over(SamplingParams) const;  // with these in place of what is there
  std::string text() const;                   // "temperature 0.6, top_p 0.95"; empty: there are none
};

// Throw an Error that names the field and `where`.
GenerationDefaults defaults_of_config(const Json& generation_config, const std::string& where);
GenerationDefaults defaults_of_gguf(const Json& metadata, const std::string& where);

}  // namespace mr
