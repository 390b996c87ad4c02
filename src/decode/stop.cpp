#include "decode/stop.h"

#include <algorithm>

namespace mr {

StopMatcher::StopMatcher(std::span<const std::string> stops) : stops_(stops.begin(), stops.end()) {
  std::stable_sort(stops_.begin(), stops_.end(), [](const std::string& a, const std::string& b) { return a.size() > b.size(); });
}

bool StopMatcher::push(std::string_view piece, std::string& out) {
  if (stops_.empty()) {
    out += piece;
    return false;
  }
  size_t n_old = held_.size();
  held_ += piece;
  for (size_t end = n_old + 1; end <= held_.size(); end++)
    for (const std::string& stop : stops_)
      if (std::string_view(held_).substr(0, end).ends_with(stop)) {
        out.append(held_, 0, end - stop.size());
        held_.clear();
        return true;
      }
  size_t n_safe = held_from(held_);
  out.append(held_, 0, n_safe);
  held_.erase(0, n_safe);
  return false;
}

void StopMatcher::finish(std::string& out) {
  out += held_;
  held_.clear();
}

// Beginning of the longest suffix of the text that is a prefix of a stop string.
size_t StopMatcher::held_from(std::string_view text) const {
  size_t longest = stops_.front().size() - 1;
  for (size_t begin = text.size() - std::min(text.size(), longest); begin < text.size(); begin++)
    for (const std::string& stop : stops_)
      if (std::string_view(stop).starts_with(text.substr(begin))) return begin;
  return text.size();
}

}  // namespace mr
