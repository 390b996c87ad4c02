// GGUF, the single-file format of the ggml family: little-endian, version 2 or 3. The metadata becomes one flat JSON object,
// keys as in the file ("llama.block_count"), arrays as JSON arrays. Its strings are the file's bytes, not checked to be UTF-8.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/json.h"
#include "io/mmap.h"
#include "io/stored_tensor.h"

namespace mr {

struct GgufFile {
  explicit GgufFile(MappedFile mapped);  // parses the header; throws Error if it is invalid

  static bool recognizes(std::span<const std::byte> bytes);

  MappedFile file;
  int version = 0;
  Json metadata = Json::object();
  std::vector<StoredTensor> tensors;  // in the file's order
  // The metadata again, in the file's order, each entry's type and value as they are stored.
  std::vector<std::pair<std::string, std::span<const std::byte>>> entries;
};

}  // namespace mr
