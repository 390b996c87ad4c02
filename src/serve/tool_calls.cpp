#include "serve/tool_calls.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>

#include "serve/fields.h"

namespace mr {

static constexpr std::string_view open_tag = "<tool_call>", close_tag = "</tool_call>", white = " \t\r\n";
static constexpr std::string_view bare_marks[] = {"[TOOL_CALLS]", "<|python_tag|>"};
static constexpr auto npos = std::string_view::npos;

static std::string fresh_call_id() {
  std::random_device entropy;
  return fmt::format("call_{:08x}{:08x}{:08x}", entropy(), entropy(), entropy());
}

std::vector<ToolCall> ToolCallReader::calls_in(std::string_view text) const {
  if (nesting_of(text).deepest > 64) return {};
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
  while (take(news, last)) {
  }
  return news;
}

// Decides about the beginning of what is held. False: there is nothing more to be said now.
bool ToolCallReader::take(News& news, bool last) {
  const bool bare = !any_content_;
  const size_t begin = held_.find_first_not_of(bare && any_calls_ ? " \t\r\n;" : white);
  if (begin == npos) {
    if (last && !after_call_) news.content += held_;
    if (last) held_.clear();
    return false;
  }
  std::string_view text = std::string_view(held_).substr(begin);
  if (text.starts_with(open_tag)) return take_tagged(news, begin, last);
  if (!last && open_tag.starts_with(text)) return false;
  return bare ? take_bare(news, begin, last) : take_content(news, begin, last);
}

bool ToolCallReader::take_tagged(News& news, size_t begin, bool last) {
  const size_t inner = begin + open_tag.size(), close = held_.find(close_tag, inner);
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
  std::string_view json = std::string_view(held_).substr(at);
  const size_t size = nesting_of(json).first_end;
  if (size == npos && !last) return false;
  auto calls = size == npos ? std::vector<ToolCall>() : calls_in(json.substr(0, size));
  if (calls.empty()) return take_content(news, begin, last);
  add_calls(news, std::move(calls), at + size);
  return true;
}

void ToolCallReader::add_calls(News& news, std::vector<ToolCall> calls, size_t end) {
  for (ToolCall& call : calls) news.calls.push_back(std::move(call));
  held_.erase(0, end);
  any_calls_ = after_call_ = true;
}

// What begins at `begin` is no call. White space that a call may follow is held back.
bool ToolCallReader::take_content(News& news, size_t begin, bool last) {
  size_t end = begin;
  do end = std::min(held_.find(open_tag[0], end + 1), held_.size());
  while (end < held_.size() && !std::string_view(held_).substr(end).starts_with(open_tag) &&
         (last || !open_tag.starts_with(std::string_view(held_).substr(end))));
  const size_t n = last && end == held_.size() ? end : held_.find_last_not_of(white, end - 1) + 1;
  const size_t from = after_call_ ? begin : 0;
  news.content.append(held_, from, n - from);
  held_.erase(0, n);
  any_content_ = true;
  after_call_ = false;
  return !held_.empty();
}

}  // namespace mr
