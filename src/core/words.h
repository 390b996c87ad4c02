// Words in messages: counts that agree with their noun, and the known word nearest to a misspelt one.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace mr {

std::string counted(int64_t n, std::string_view noun);  // "1 token", "2 tokens"

// By Levenshtein distance, at most a third of the word or two letters; empty: none is near.
std::string_view nearest_word(std::string_view word, std::span<const std::string_view> known);

std::string ascii_lower(std::string_view);

}  // namespace mr
