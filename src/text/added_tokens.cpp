#include "text/added_tokens.h"

#include <algorithm>

#include "text/unicode.h"

namespace mr {

namespace {

bool ends_with_word(std::string_view text) {
  if (text.empty()) return false;
  size_t pos = text.size() - 1;
  while (pos > 0 && (text[pos] & 0xC0) == 0x80) --pos;
  return is_word(next_code_point(text, pos));
}

bool starts_with_word(std::string_view text) {
  size_t pos = 0;
  return !text.empty() && is_word(next_code_point(text, pos));
}

}  // namespace

int32_t AddedTokenMatcher::child(int32_t node, char c) const {
  for (auto [byte, next] : nodes_[node].next) {
    if (byte == c) return next;
  }
  return -1;
}

void AddedTokenMatcher::add(std::string_view text, const AddedToken& token) {
  if (text.empty()) return;
  int32_t node = 0;
  for (char c : text) {
    int32_t next = child(node, c);
    if (next < 0) {
      next = static_cast<int32_t>(nodes_.size());
      nodes_[node].next.emplace_back(c, next);
      nodes_.emplace_back();
    }
    node = next;
  }
  if (nodes_[node].token >= 0) return;
  nodes_[node].token = static_cast<int32_t>(tokens_.size());
  tokens_.push_back(token);
}

bool AddedTokenMatcher::find(std::string_view text, size_t from, TimedLoop& loop, Match& match) const {
  for (size_t begin = from; begin < text.size(); ++begin) {
    match.token = -1;
    int32_t node = child(0, text[begin]);
    size_t pos = begin + 1;
    for (; node >= 0; ++pos) {
      if (nodes_[node].token >= 0) match = {begin, pos, nodes_[node].token};
      node = pos < text.size() ? child(node, text[pos]) : -1;
    }
    loop.work(4 * (pos - begin));
    if (match.token >= 0) return true;
  }
  return false;
}

std::vector<AddedTokenMatcher::Segment> AddedTokenMatcher::split(std::string_view text, bool parse_special,
                                                                 const Allowance& allowance) const {
  TimedLoop loop(allowance, "finding tokens in the text");
  std::vector<Segment> segments;
  size_t done = 0;
  Match match;
  for (size_t from = 0; !tokens_.empty() && find(text, from, loop, match); from = match.end) {
    const AddedToken& token = tokens_[match.token];
    if (token.special && !parse_special) continue;
    if (token.single_word && (ends_with_word(text.substr(0, match.begin)) || starts_with_word(text.substr(match.end)))) continue;
    size_t begin = match.begin, end = match.end;
    if (token.lstrip && done < begin) begin -= trailing_space(text.substr(done, begin - done));
    if (token.rstrip) end = end < done ? done : end + leading_space(text.substr(end));  // everything before `done` is stripped space
    begin = std::max(begin, done);
    if (segments.size() + 2 > segments.capacity()) allowance.hold((segments.size() + 2) * sizeof(Segment));  // it doubles
    if (done < begin) segments.push_back({text.substr(done, begin - done), -1});
    segments.push_back({text.substr(begin, end - std::min(begin, end)), token.id});
    done = std::max(done, end);
  }
  if (done < text.size()) segments.push_back({text.substr(done), -1});
  return segments;
}

}  // namespace mr
