// A model's files in another format or container: Hugging Face directories and GGUF files, either way. What is written appears under its
// name only when it is whole, has been read back, and describes the same model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

namespace mr {

struct ConvertOptions {
  std::string format;       // a name of WeightFormats; empty: every tensor keeps its own
  bool requantize = false;  // also what is quantized already
  bool force = false;       // replace what is there
  bool tokenizer = true;
  int64_t shard_bytes = 0;  // most bytes of a file; 0: one file
  int threads = 1;
  std::function<void(int64_t done, int64_t total)> progress{};  // bytes written
};

// to: NAME.gguf, or a directory. Throws Error and leaves nothing behind.
void convert_model(const std::filesystem::path& from, const std::filesystem::path& to, const ConvertOptions&);

}  // namespace mr
