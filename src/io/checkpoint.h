// One interface to a model's files: a Hugging Face directory (config.json with model.safetensors, or with shards and their index), a
// single safetensors file, or a GGUF file or a directory with one (further parts are found by name). Opening maps the files and checks
// every tensor's offset and size; tensor data is not copied.
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/json.h"
#include "core/tensor.h"
#include "io/mmap.h"
#include "io/stored_tensor.h"

namespace mr {

class Checkpoint {
 public:
  enum class Want : uint8_t { tensors, configuration };  // configuration: a directory may hold config.json alone
  // Decides by the contents, not by the name.
  static std::unique_ptr<Checkpoint> open(const std::filesystem::path& path, Want = Want::tensors);
  Checkpoint(const Checkpoint&) = delete;

  const StoredTensor* find(std::string_view name) const;  // null: none
  const StoredTensor& get(std::string_view name) const;   // throws, naming the tensor and the path
  std::span<const StoredTensor> tensors() const { return tensors_; }

  // config.json (an empty object for a lone safetensors file without one beside it); for GGUF the metadata as a flat object,
  // {"general.architecture": "llama", "llama.block_count": 30, ...}, arrays included.
  const Json& config() const { return config_; }
  bool is_gguf() const { return is_gguf_; }
  const std::filesystem::path& path() const { return path_; }  // what was opened
  // What the configuration says of the weights' quantization, with a "quant_method"; an empty object: nothing.
  const Json& quantization() const { return quantization_; }
  const std::filesystem::path& file_of(const StoredTensor& tensor) const { return files_[size_t(tensor.file)].path(); }

  void drop(const StoredTensor& tensor) const;  // releases its pages; reading them again is slow but correct

 private:
  explicit Checkpoint(std::filesystem::path path) : path_(std::move(path)) {}
  void open_directory(Want);
  void open_shards(const std::filesystem::path& index);
  void open_safetensors(MappedFile file);
  void open_file();
  void open_gguf(MappedFile file);
  void add(MappedFile file, std::vector<StoredTensor> tensors);
  void index_names();

  std::filesystem::path path_;
  bool is_gguf_ = false;
  Json config_ = Json::object(), quantization_ = Json::object();
  std::vector<MappedFile> files_;
  std::vector<Buffer> copies_;  // of tensors that are misaligned in their file
  std::vector<StoredTensor> tensors_;
  std::unordered_map<std::string_view, const StoredTensor*> by_name_;
};

// Throw, naming the file, if it is missing, not JSON, or larger or more deeply nested than any real one.
Json read_json(const std::filesystem::path& path);
Json read_json_object(const std::filesystem::path& path);

}  // namespace mr
