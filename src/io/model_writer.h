// Writing models: GGUF files and Hugging Face's safetensors, in parts of a size if asked for. The list of tensors comes first, since
// headers have it; the data follows in the same order, a tensor at a time.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "core/json.h"
#include "io/stored_tensor.h"

namespace mr {

struct TensorHead {
  std::string name, format;    // StoredFormat::name
  std::vector<int64_t> shape;  // outermost first
  int64_t bytes = 0;
};
TensorHead tensor_head(std::string name, std::string format, std::vector<int64_t> shape);  // with its bytes; throws for an unknown format

// Gives the data of tensor i, in as many calls of `write` as it likes.
using TensorData = std::function<void(size_t i, const std::function<void(std::span<const std::byte>)>& write)>;

// A value of GGUF's metadata, which has more types than JSON. Lists are of one type.
struct GgufValue {
  using List = std::variant<std::vector<std::string>, std::vector<int32_t>, std::vector<float>, std::vector<bool>>;
  std::variant<uint32_t, int32_t, float, bool, std::string, uint64_t, List, std::vector<std::byte>>
      value;  // the last: type and value as stored
};
using GgufMetadata = std::vector<std::pair<std::string, GgufValue>>;

// Groups of tensors, in order, of at most `most` bytes each (one tensor may be more); 0: all in one.
std::vector<std::vector<size_t>> shards_of(std::span<const TensorHead>, int64_t most);

// The files of a model of so many shards: NAME.gguf, or NAME-00001-of-0000N.gguf.
std::vector<std::filesystem::path> gguf_parts(const std::filesystem::path& file, size_t shards);

// All parts, with the metadata in the first. Returns them, the first first.
std::vector<std::filesystem::path> write_gguf(const std::filesystem::path& file, const GgufMetadata&, std::span<const TensorHead>,
                                              int64_t shard_bytes, const TensorData&);

// model.safetensors in a directory, or its shards with their index.
void write_safetensors(const std::filesystem::path& directory, std::span<const TensorHead>, int64_t shard_bytes, const TensorData&);

}  // namespace mr
