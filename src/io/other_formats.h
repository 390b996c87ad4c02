// What people have that is not read here, and what to do about it: pickles, adapters, pointers of Git LFS, other quantizations. Told by
// names and first bytes alone.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>

#include "core/json.h"

namespace mr {

// A sentence's end: "is a LoRA adapter of 'x': …"; empty: nothing that is known.
std::string other_format(std::span<const std::byte> beginning_of_file, const std::filesystem::path& name);
std::string other_format_in(const std::filesystem::path& directory);

// "AWQ, 4 bits, groups of 128", by config.json or by the files that say so beside it; empty: weights are stored as they are.
std::string other_quantization(const Json& config, const std::filesystem::path& directory);

// The GGUF file of a directory: its only one, or the first part of its only set of parts; none: there is no such file. Throws where
// there are several to choose from.
std::optional<std::filesystem::path> gguf_in(const std::filesystem::path& directory);

}  // namespace mr
