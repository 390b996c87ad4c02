#include "bench/streamed_answer.h"

#include <algorithm>

#include "core/bounded_json.h"
#include "core/error.h"

namespace mr {

bool EventParser::feed(std::string_view bytes, const OnData& on_data) {
  for (char c : bytes) {
    if (too_long_) break;
    bool second_half = after_cr_ && c == '\n';
    after_cr_ = c == '\r';
    if (second_half) continue;
    if (c == '\n' || c == '\r')
      line(on_data);
    else
      line_ += c;
    too_long_ = line_.size() + data_.size() > max_event;
  }
  return !too_long_;
}

void EventParser::line(const OnData& on_data) {
  std::string_view text = line_;
  if (text.empty()) {
    if (has_data_) on_data(data_);
    data_.clear();
    has_data_ = false;
  } else if (text.starts_with("data") && (text.size() == 4 || text[4] == ':')) {
    text.remove_prefix(std::min<size_t>(5, text.size()));
    if (text.starts_with(' ')) text.remove_prefix(1);
    if (has_data_) data_ += '\n';
    data_ += text;
    has_data_ = true;
  }
  line_.clear();
}

namespace {

const Json* member(const Json& j, const char* name) {
  auto found = j.is_object() ? j.find(name) : j.end();
  return found == j.end() ? nullptr : &*found;
}

bool is_text(const Json* j) { return j && j->is_string() && !j->get_ref<const std::string&>().empty(); }

bool has_text(const Json& j) {
  const Json* choices = member(j, "choices");
  if (!choices || !choices->is_array() || choices->empty()) return false;
  const Json& choice = choices->front();
  const Json* delta = member(choice, "delta");
  return is_text(member(choice, "text")) || (delta && (is_text(member(*delta, "content")) || is_text(member(*delta, "reasoning_content"))));
}

int count_of(const Json& usage, const char* name) {
  const Json* n = member(usage, name);
  return n && n->is_number_integer() && *n >= 0 && *n <= INT32_MAX ? n->get<int>() : 0;
}

}  // namespace

void StreamedAnswer::body(int status, std::string_view bytes) {
  if (status != 200) return explain(bytes);
  if (!events_.feed(bytes, [this](std::string_view data) { event(data); })) refuse("an event without end", {});
}

void StreamedAnswer::end(std::string error) {
  if (!error.empty())
    out_.error = std::move(error);
  else if (out_.error.empty() && !done_)
    out_.error = n_pieces_ == 0 ? "no event stream" : "broken stream";
  if (out_.error.empty() && n_pieces_ == 0) out_.first = last_;  // tokens without text
  if (out_.n_tokens == 0) out_.n_tokens = n_pieces_;
  out_.done = out_.error.empty() ? last_ : now_();
}

// After the first text only events that carry more than text are parsed: the load generator must stay cheap.
void StreamedAnswer::event(std::string_view data) {
  if (data == "[DONE]") {
    done_ = true;
    return;
  }
  bool counts = data.find("\"usage\":{") != data.npos, fails = data.find("\"error\"") != data.npos;
  if (!counts) last_ = now_();
  if (n_pieces_ > 0 && !counts && !fails) {
    n_pieces_++;
    return;
  }
  Json j;
  try {
    j = parse_json<Json>(data, "the event");
  } catch (const Error&) {
  }
  if (!j.is_object()) return refuse("no JSON in the stream", data);
  if (j.contains("error")) return refuse("error within the stream", data);
  if (has_text(j)) {
    last_ = now_();
    if (n_pieces_++ == 0) out_.first = last_;
  }
  if (const Json* usage = member(j, "usage"); counts && usage && usage->is_object()) {
    out_.n_tokens = count_of(*usage, "completion_tokens");
    out_.prompt_tokens = count_of(*usage, "prompt_tokens");
  }
}

void StreamedAnswer::explain(std::string_view words) {
  out_.detail += words.substr(0, max_detail - std::min(max_detail, out_.detail.size()));
}

void StreamedAnswer::refuse(std::string error, std::string_view words) {
  out_.error = std::move(error);
  explain(words);
}

}  // namespace mr
