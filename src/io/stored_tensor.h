// A tensor as stored in a file, and the table of the element encodings in files. Being listed here does not mean that it can be
// computed with: the loader decides that.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mr {

// Rows of the innermost dimension are divided into blocks of `elements`, each stored in `bytes`. Plain types have one element a block.
struct StoredFormat {
  std::string_view name;  // "f32", "q4_1"
  int elements, bytes;
  int align;                     // largest scalar inside a block, in bytes
  int gguf;                      // ggml's type number, -1: not in GGUF files
  std::string_view safetensors;  // "F32"; empty: not in safetensors files
};

std::span<const StoredFormat> stored_formats();

struct StoredTensor {
  std::string name;
  std::string format;                // StoredFormat::name
  std::vector<int64_t> shape;        // row-major, outermost first (GGUF files list it innermost first)
  std::span<const std::byte> bytes;  // aligned for the format's scalars
  int file = 0;                      // index into the checkpoint's files
};

std::string shape_string(std::span<const int64_t> shape);  // "[3, 4096]"

// Bytes that `shape` takes in `format`. Throws, naming the tensor and the file, when rows do not divide into blocks or the
// product overflows.
size_t stored_bytes(const StoredFormat& format, const StoredTensor& tensor, const std::filesystem::path& file);

}  // namespace mr
