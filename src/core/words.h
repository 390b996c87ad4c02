// Words of messages and names: counts that agree with their noun, and the known word that a misspelt one is nearest to.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace mr {

std::string counted(int64_t n, std::string_view noun);  // "1 token", "2 tokens"

// Empty where none is near: by Levenshtein's distance, at most a third of the word or two letters.
std::string_view nearest_word(std::string_view word, std::span<const std::string_view> known);

std::string ascii_lower(std::string_view);

}  // namespace mr
