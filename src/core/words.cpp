#include "core/words.h"

#include <fmt/core.h>

#include <algorithm>
#include <vector>

namespace mr {

namespace {

constexpr size_t kLongest = 64;  // word that is compared

// Levenshtein distance.
size_t distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); j++) row[j] = j;
  for (size_t i = 1; i <= a.size(); i++) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); j++) {
      const size_t above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1])});
      diagonal = above;
    }
  }
  return row.back();
}

}  // namespace

std::string counted(int64_t n, std::string_view noun) { return fmt::format("{} {}{}", n, noun, n == 1 ? "" : "s"); }

std::string_view nearest_word(std::string_view word, std::span<const std::string_view> known) {
  std::string_view nearest;
  size_t best = std::max<size_t>(2, word.size() / 3) + 1;
  if (word.size() > kLongest) return nearest;
  for (std::string_view k : known) {
    const size_t d = distance(word, k);
    if (d < best) {
      best = d;
      nearest = k;
    }
  }
  return nearest;
}

std::string ascii_lower(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = char(c + 32);
  return out;
}

}  // namespace mr
