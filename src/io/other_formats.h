// Recognizes formats that are not supported, and says what to do: pickles, adapters, Git LFS pointers, other quantizations. Judged by
// names and first bytes.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>

#include "core/json.h"

namespace mr {

// The predicate of a message: "is a LoRA adapter of 'x': …"; empty: not recognized.
std::string other_format(std::span<const std::byte> beginning_of_file, const std::filesystem::path& name);
std::string other_format_in(const std::filesystem::path& directory);

// What config.json or the files next to it say of the weights' quantization, with a "quant_method"; an empty object: nothing.
Json quantization_in(const Json& config, const std::filesystem::path& directory);
std::string quantization_text(const Json& quantization);  // "AWQ, 4 bits, groups of 128"; empty: not quantized

// The GGUF file of a directory: its only one, or the first part of its only set of parts; none: there is no such file. Throws if there
// are several to choose from.
std::optional<std::filesystem::path> gguf_in(const std::filesystem::path& directory);

}  // namespace mr
