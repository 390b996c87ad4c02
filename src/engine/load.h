// An opened MODEL path: its tensors and, if present, its tokenizer. Without a tokenizer a model works with token ids.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "engine/generation_defaults.h"
#include "io/checkpoint.h"
#include "text/tokenizer.h"

namespace mr {

struct ModelFiles {
  std::unique_ptr<Checkpoint> checkpoint;
  std::optional<Tokenizer> tokenizer;
  std::vector<int32_t> stop_tokens;  // by the tokenizer and by generation_config.json
  GenerationDefaults sampling;
};

ModelFiles open_model(const std::filesystem::path&, Checkpoint::Want = Checkpoint::Want::tensors);

}  // namespace mr
