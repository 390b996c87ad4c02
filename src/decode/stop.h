// Stop strings in a stream of text. A stop string may lie across any number of pieces: the longest end of the text that may
// still begin one is held back, so no part of a match is ever emitted. How the text is cut into pieces changes nothing.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mr {

class StopMatcher {
 public:
  explicit StopMatcher(std::span<const std::string> stops);

  // Appends to `out` what is now safe to show. True: the text ends here, before the stop string whose last byte came first
  // (of several that end on the same byte, the longest).
  bool push(std::string_view piece, std::string& out);
  void finish(std::string& out);  // the answer ended otherwise: what was held back belongs to it

 private:
  size_t held_from(std::string_view text) const;

  std::vector<std::string> stops_;  // longest first
  std::string held_;
};

}  // namespace mr
