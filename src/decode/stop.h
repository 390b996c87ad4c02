// Stop strings in a stream of text. A stop string may span any number of pieces: the longest suffix that may still begin
// one is held back, so no part of a match is ever emitted. The result does not depend on how the text is split.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mr {

class StopMatcher {
 public:
  explicit StopMatcher(std::span<const std::string> stops);

  // Appends to `out` the text that is safe to emit. True: the text ends here, before the stop string that was completed first
  // (of several that end on the same byte, the longest).
  bool push(std::string_view piece, std::string& out);
  void finish(std::string& out);  // the answer ended without a stop string: emits what was held back

 private:
  size_t held_from(std::string_view text) const;

  std::vector<std::string> stops_;  // longest first
  std::string held_;
};

}  // namespace mr
