// UTF-8 and the few Unicode operations that tokenizers need. Every function but to_valid_utf8 expects valid UTF-8.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/allowance.h"

namespace mr {

inline constexpr std::string_view replacement_character = "\xEF\xBF\xBD";  // U+FFFD

// The length of the longest prefix of `text` that is valid UTF-8.
size_t valid_utf8_prefix(std::string_view text);

// How many bytes at the end of `text` are the beginning of a character that more bytes could complete: 0..3.
size_t incomplete_utf8_tail(std::string_view text);

// Each maximal invalid subpart becomes one U+FFFD (Unicode's recommended practice, also Python's errors="replace").
std::string to_valid_utf8(std::string_view text);

// The code point at `pos`; advances `pos` past it.
char32_t next_code_point(std::string_view text, size_t& pos);
size_t code_point_length(unsigned char lead);  // bytes of the character that starts with `lead`
void append_utf8(std::string& out, char32_t code_point);
size_t count_code_points(std::string_view text);

bool is_space(char32_t c);  // the White_Space property
bool is_word(char32_t c);   // \w of regular expressions

size_t leading_space(std::string_view text);   // bytes of white space at the start
size_t trailing_space(std::string_view text);  // bytes of white space at the end

enum class NormalForm : uint8_t { nfc, nfd, nfkc, nfkd };
std::string normalize(std::string_view text, NormalForm form, const Allowance& = {});
std::string to_lower(std::string_view text, const Allowance& = {});
std::string to_upper(std::string_view text, const Allowance& = {});
std::string strip_accents(std::string_view text, const Allowance& = {});  // drops combining marks

size_t count_of(std::string_view text, std::string_view wanted, const Allowance& = {});  // from left to right, never overlapping
void replace_all(std::string& text, std::string_view from, std::string_view to, const Allowance& = {});

}  // namespace mr
