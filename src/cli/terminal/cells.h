// Text in a terminal's cells: code points are 0, 1 or 2 cells wide, and a grapheme cluster may have several. Text is valid UTF-8.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace mr {

int cells_of(char32_t);
int cells_of(std::string_view);

// Wraps words to rows of at most this many cells; the first row already starts at the margin, the others are indented to it.
std::string wrap_words(std::string_view text, int columns, int margin = 0);

// Boundaries of grapheme clusters, the unit of the cursor and delete keys.
size_t next_cluster(std::string_view text, size_t at);
size_t previous_cluster(std::string_view text, size_t at);

}  // namespace mr
