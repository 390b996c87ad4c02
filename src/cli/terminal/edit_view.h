// How an edited text is laid out and drawn: rows that leave the last column free, so that the terminal never wraps by itself, and of
// a text taller than the screen the part around the cursor.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cli/terminal/raw_terminal.h"

namespace mr {

struct EditRow {
  size_t begin, end;  // bytes of the text
};

// Every row is indented like the first, which has the prompt there.
std::vector<EditRow> lay_out(std::string_view text, int columns);
size_t row_of(const std::vector<EditRow>& rows, size_t cursor);
size_t nearest_in_row(std::string_view text, const EditRow& row, int cells);  // where the cursor lands that comes from another row

std::string shown(std::string_view text);  // tabs as spaces, control characters as ^X
int shown_cells(std::string_view text);

class EditView {
 public:
  struct Scene {
    std::string_view prompt, text;
    size_t cursor = 0;
    std::string_view below;  // a line under the text: candidates of a completion; may be empty
  };
  // What to write so that the screen shows the scene instead of the last one.
  std::string draw(const Scene&, TerminalSize);
  std::string finish(const Scene&, TerminalSize);  // all of it, and the cursor in a new row
  void reset() { above_.clear(); }                 // the screen is new, or others wrote to it

 private:
  std::string back_to_top(TerminalSize) const;
  std::vector<int> above_;  // cells of the rows on the screen down to the cursor's
};

int text_columns(std::string_view prompt, TerminalSize);

}  // namespace mr
