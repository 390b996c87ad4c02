// How text lies in a terminal's cells: characters are 0, 1 or 2 cells wide, and what a reader takes for one character may be several
// code points. Text is valid UTF-8.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace mr {

int cells_of(char32_t);
int cells_of(std::string_view);

// Words in rows of at most this many cells; the first row begins at the margin already, the others are indented to it.
std::string wrap_words(std::string_view text, int columns, int margin = 0);

// The borders of grapheme clusters, which the cursor and the delete keys move by.
size_t next_cluster(std::string_view text, size_t at);
size_t previous_cluster(std::string_view text, size_t at);

}  // namespace mr
