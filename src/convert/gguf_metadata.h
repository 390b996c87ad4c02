// A model's description as GGUF metadata, and the way back to a config.json that transformers reads.
#pragma once

#include <string>

#include "io/checkpoint.h"
#include "io/model_writer.h"
#include "model/arch/arch.h"

namespace mr {

// The family under whose name a model is written, and general.architecture; throws where GGUF has no such files.
struct GgufTarget {
  const Arch* arch;
  std::string name;
};
GgufTarget gguf_target(const ModelSpec&);
// The model as a reader of the file will see it: the same, but for how Gemma's scores are scaled.
ModelSpec as_read_from_gguf(ModelSpec);

// By the model's spec; config.json's own numbers where a spec has rounded them.
GgufMetadata gguf_metadata(const ModelSpec&, const Config&, const GgufTarget&);
// Divisors of the rope's frequencies, which are tensors: rope_freqs.weight, or rope_factors_long.weight and _short.
std::vector<std::pair<std::string, std::vector<float>>> rope_tensors(const ModelSpec&);

// config.json of a GGUF file's model; dtype: "bfloat16".
OrderedJson config_json(const Checkpoint& gguf, const std::string& dtype);

// Throws unless both describe the same model, up to how a container says it.
void check_same_model(const ModelSpec& wanted, const ModelSpec& written, const std::string& what);

}  // namespace mr
