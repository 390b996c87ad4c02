// A model's tokenizer in the other container's words.
#pragma once

#include <filesystem>
#include <string>

#include "core/json.h"
#include "io/model_writer.h"

namespace mr {

// tokenizer.json with tokenizer_config.json as GGUF metadata of `vocab` tokens. Throws where GGUF has no words for it.
GgufMetadata tokenizer_to_gguf(const Json& tokenizer_json, const Json& tokenizer_config, int vocab);

// The way back: tokenizer.json, and tokenizer_config.json with the chat template.
struct TokenizerFiles {
  OrderedJson tokenizer, config;
};
TokenizerFiles tokenizer_from_gguf(const Json& metadata);

}  // namespace mr
