// Which files of a repository make a model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/error.h"

namespace mr {

struct HubFile {
  std::string name;  // a path inside the repository
  int64_t size = 0;
  std::string hash;  // of its content, and the blob's name: SHA-256 (64 digits), or git's SHA-1 (40)
};

struct Repository {
  std::string name, commit;
  std::vector<HubFile> files;
};

// The name is ambiguous; `options` are the possible selections after the colon, with bytes.
struct SeveralModels : Error {
  struct Option {
    std::string select;
    int64_t bytes;
  };
  SeveralModels(const std::string& text, std::vector<Option> options) : Error(text), options(std::move(options)) {}
  std::vector<Option> options;
};

// Without a selection: safetensors with their configuration and tokenizer, or the repository's only GGUF file. With one: the GGUF
// file (with all of its parts) of that quantization or name. Throws where nothing fits, listing what there is.
std::vector<HubFile> choose_files(const Repository&, const std::string& select);

}  // namespace mr
