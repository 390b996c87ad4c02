#include "cli/chat/reasoning.h"

#include <algorithm>

#include "text/unicode.h"

namespace mr {

namespace {

struct Tags {
  std::string_view open, close;
};
constexpr Tags kTags[] = {{"<think>", "</think>"},
                          {"<thinking>", "</thinking>"},
                          {"<thought>", "</thought>"},
                          {"<reasoning>", "</reasoning>"},
                          {"[THINK]", "[/THINK]"}};

// Bytes at the end of `text` that are a prefix of `tag`.
size_t cut_tag(std::string_view text, std::string_view tag) {
  for (size_t n = std::min(text.size(), tag.size() - 1); n > 0; n--)
    if (text.ends_with(tag.substr(0, n))) return n;
  return 0;
}

}  // namespace

ReasoningSplitter::ReasoningSplitter(std::string_view end_of_prompt) {
  end_of_prompt.remove_suffix(trailing_space(end_of_prompt));
  for (const Tags& t : kTags)
    if (end_of_prompt.ends_with(t.open)) {
      state_ = State::reasoning;
      closing_ = t.close;
    }
}

ReasoningSplitter::Parts ReasoningSplitter::split(std::string_view text) {
  Parts parts;
  held_ += text;
  if (state_ == State::begin) {
    std::string_view rest = std::string_view(held_).substr(leading_space(held_));
    const Tags* found = nullptr;
    bool may_open = rest.empty();
    for (const Tags& t : kTags) {
      if (rest.starts_with(t.open)) found = &t;
      may_open |= t.open.starts_with(rest);
    }
    if (!found && may_open) return parts;
    if (found) {
      closing_ = found->close;
      held_ = std::string(rest.substr(found->open.size()));
    }
    state_ = found ? State::reasoning : State::answer;
  }
  if (state_ == State::reasoning) {
    const size_t end = held_.find(closing_);
    const size_t n = end != std::string::npos ? end : held_.size() - cut_tag(held_, closing_);
    parts.reasoning = held_.substr(0, n);
    held_.erase(0, end != std::string::npos ? n + closing_.size() : n);
    if (end == std::string::npos) return parts;
    state_ = State::after;
  }
  if (state_ == State::after) {  // drops the empty lines in between
    held_.erase(0, leading_space(held_));
    if (held_.empty()) return parts;
    state_ = State::answer;
  }
  parts.answer = std::move(held_);
  held_.clear();
  return parts;
}

ReasoningSplitter::Parts ReasoningSplitter::finish() {
  Parts parts;
  (state_ == State::reasoning ? parts.reasoning : parts.answer) = std::move(held_);
  held_.clear();
  return parts;
}

}  // namespace mr
