#include "cli/table.h"

#include <algorithm>

namespace mr {

// Characters, not bytes: continuation bytes are not counted.
static size_t width(const std::string& text) {
  return size_t(std::ranges::count_if(text, [](unsigned char c) { return (c & 0xC0) != 0x80; }));
}

std::string Table::text() const {
  std::vector<size_t> widths;
  for (const auto& row : rows_) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); i++) widths[i] = std::max(widths[i], width(row[i]));
  }
  std::string out;
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size(); i++) out += row[i] + (i + 1 < row.size() ? std::string(widths[i] - width(row[i]) + 2, ' ') : "");
    out += '\n';
  }
  return out;
}

}  // namespace mr
