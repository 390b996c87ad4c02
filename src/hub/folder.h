// The models in a folder: a Hugging Face directory or GGUF files, each in one file or in parts. Judged by names and config.json;
// weights are not opened.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace mr {

struct LocalModel {
  std::filesystem::path path;  // for the loader: the directory, or the file (of several parts the first)
  bool is_gguf = false;
  std::string label;                         // the weights' format, by the file's name or config.json: Q4_K_M, BF16; may be empty
  std::vector<std::filesystem::path> files;  // all of its files
  int64_t bytes = 0;
  std::filesystem::file_time_type when = std::filesystem::file_time_type::min();  // of the newest file
  std::string problem;                                                            // empty: it is complete
  std::string format() const;                                                     // "GGUF Q4_K_M", "safetensors BF16"
};

// `depth`: 0 for the folder alone, 1 for its subfolders' GGUF files too. Directory first, then GGUF files by name.
std::vector<LocalModel> models_in(const std::filesystem::path& folder, int depth = 0);

}  // namespace mr
