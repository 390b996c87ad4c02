// Lays out and draws an edited text: rows leave the last column free, so that the terminal never wraps by itself; of a text taller than
// the screen the part around the cursor is shown.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cli/terminal/raw_terminal.h"

namespace mr {

struct EditRow {
  size_t begin, end;  // bytes of the text
};

// Every row is indented by the width of the prompt, which is in the first.
std::vector<EditRow> lay_out(std::string_view text, int columns);
size_t row_of(const std::vector<EditRow>& rows, size_t cursor);
size_t nearest_in_row(std::string_view text, const EditRow& row, int cells);  // target of a vertical cursor movement

std::string shown(std::string_view text);  // tabs as spaces, control characters as ^X
int shown_cells(std::string_view text);

class EditView {
 public:
  struct Scene {
    std::string_view prompt, text;
    size_t cursor = 0;
    std::string_view below;  // a line below the text: completion candidates; may be empty
  };
  // The escape sequences that turn the last scene into this one.
  std::string draw(const Scene&, TerminalSize);
  std::string finish(const Scene&, TerminalSize);  // draws all of it and moves the cursor to a new row
  void reset() { above_.clear(); }                 // after other output, or on a new screen

 private:
  std::string back_to_top(TerminalSize) const;
  std::vector<int> above_;  // cells of the drawn rows, down to the cursor's
};

int text_columns(std::string_view prompt, TerminalSize);

}  // namespace mr
