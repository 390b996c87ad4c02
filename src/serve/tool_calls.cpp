#include "serve/tool_calls.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>

namespace mr {

static constexpr std::string_view open_tag = "<tool_call>", close_tag = "</tool_call>", white = " \t\r\n";
static constexpr std::string_view bare_marks[] = {"[TOOL_CALLS]", "<|python_tag|>"};
static constexpr auto npos = std::string_view::npos;

static std::string fresh_call_id() {
  std::random_device entropy;
  return fmt::format("call_{:08x}{:08x}{:08x}", entropy(), entropy(), entropy());
}

// Text that looks like many calls, each open until the end, is looked through only so often.
std::vector<ToolCall> ToolCallReader::calls_in(std::string_view text) {
  constexpr size_t times = 8, at_least = 64 << 10;
  n_tried_ += text.size();
  if (n_tried_ > times * n_read_ + at_least || deepest_nesting(text) > 64) return {};
  OrderedJson json = OrderedJson::parse(text, nullptr, false);
  if (!json.is_array()) json = OrderedJson::array({std::move(json)});
  std::vector<ToolCall> calls;
  for (const OrderedJson& item : json) {
    if (!item.is_object() || !item.contains("name") || !item["name"].is_string()) return {};
    ToolCall call{.id = fresh_call_id(), .name = item["name"], .arguments = "{}"};
    if (std::ranges::find(names_, call.name) == names_.end()) return {};
    for (const char* key : {"arguments", "parameters"})
      if (item.contains(key)) call.arguments = item[key].is_string() ? item[key].get<std::string>() : item[key].dump();
    calls.push_back(std::move(call));
  }
  return calls;
}

ToolCallReader::News ToolCallReader::add(std::string_view text, bool last) {
  News news;
  held_ += text;
  n_read_ += text.size();
  while (take(news, last)) {
  }
  held_.erase(0, at_);
  no_close_until_ -= std::min(no_close_until_, at_);
  bare_at_ = bare_at_ < at_ ? npos : bare_at_ - at_;  // npos: nowhere
  bare_end_ -= std::min(bare_end_, at_);
  at_ = 0;
  return news;
}

// Consumes the start of the held text as content or a call. False: more text is needed.
bool ToolCallReader::take(News& news, bool last) {
  const bool bare = !any_content_;
  const size_t begin = held_.find_first_not_of(bare && any_calls_ ? " \t\r\n;" : white, at_);
  if (begin == npos) {
    if (last && !after_call_) news.content.append(held_, at_);
    if (last) at_ = held_.size();
    return false;
  }
  std::string_view text = std::string_view(held_).substr(begin);
  if (text.starts_with(open_tag)) return take_tagged(news, begin, last);
  if (!last && open_tag.starts_with(text)) return false;
  return bare ? take_bare(news, begin, last) : take_content(news, begin, last);
}

bool ToolCallReader::take_tagged(News& news, size_t begin, bool last) {
  const size_t inner = begin + open_tag.size(), close = held_.find(close_tag, std::max(inner, no_close_until_));
  no_close_until_ = close == npos ? held_.size() - std::min(held_.size(), close_tag.size() - 1) : close;
  if (close == npos && !last) return false;
  auto calls = calls_in(std::string_view(held_).substr(inner, close == npos ? npos : close - inner));
  if (calls.empty()) return take_content(news, begin, last);
  add_calls(news, std::move(calls), close == npos ? held_.size() : close + close_tag.size());
  return true;
}

bool ToolCallReader::take_bare(News& news, size_t begin, bool last) {
  size_t at = begin;
  for (std::string_view mark : bare_marks) {
    std::string_view text = std::string_view(held_).substr(begin);
    if (text.starts_with(mark)) at = held_.find_first_not_of(white, begin + mark.size());
    if (!last && (mark.starts_with(text) || at == npos)) return false;
  }
  if (at == npos || (held_[at] != '{' && held_[at] != '[')) return take_content(news, begin, last);
  if (bare_at_ != at) {
    bare_ = {};
    bare_at_ = bare_end_ = at;
  }
  bool is_over = false;
  while (!is_over && bare_end_ < held_.size()) is_over = bare_.step(held_[bare_end_++]);
  if (!is_over && !last) return false;
  auto calls = is_over ? calls_in(std::string_view(held_).substr(at, bare_end_ - at)) : std::vector<ToolCall>();
  if (calls.empty()) return take_content(news, begin, last);
  add_calls(news, std::move(calls), bare_end_);
  return true;
}

void ToolCallReader::add_calls(News& news, std::vector<ToolCall> calls, size_t end) {
  for (ToolCall& call : calls) news.calls.push_back(std::move(call));
  at_ = end;
  any_calls_ = after_call_ = true;
}

// Text from `begin` on is no call. White space that a call may follow is held back.
bool ToolCallReader::take_content(News& news, size_t begin, bool last) {
  size_t end = begin;
  do end = std::min(held_.find(open_tag[0], end + 1), held_.size());
  while (end < held_.size() && !std::string_view(held_).substr(end).starts_with(open_tag) &&
         (last || !open_tag.starts_with(std::string_view(held_).substr(end))));
  const size_t n = last && end == held_.size() ? end : held_.find_last_not_of(white, end - 1) + 1;
  const size_t from = after_call_ ? begin : at_;
  news.content.append(held_, from, n - from);
  at_ = n;
  any_content_ = true;
  after_call_ = false;
  return at_ < held_.size();
}

}  // namespace mr
