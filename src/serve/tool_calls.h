// Parses tool calls in a model's output. Models write them in the form of their templates:
//   <tool_call>{"name": ..., "arguments": {...}}</tool_call>      Hermes, Qwen; SmolLM2: a list between the tags
//   {"name": ..., "parameters": {...}}                            Llama 3: the whole answer; several are separated by ;
//   [TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]          Mistral: the whole answer
// Markers that are special tokens are not part of the text, so the last two are recognized by their JSON alone.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "serve/fields.h"

namespace mr {

struct ToolCall {
  std::string id, name, arguments;  // arguments: JSON, as text
};

// Reads one answer as it comes. Only a call of a function that the client named is one; all else is content, to the byte, except
// for white space around calls. The work is linear in the text, whatever a client makes the model write.
class ToolCallReader {
 public:
  explicit ToolCallReader(std::vector<std::string> names) : names_(std::move(names)) {}

  struct News {
    std::string content;
    std::vector<ToolCall> calls;  // complete ones
  };
  News add(std::string_view text, bool last);  // what may still become a call is held back until it is the last text
  size_t n_held() const { return held_.size(); }

 private:
  bool take(News&, bool last);
  bool take_tagged(News&, size_t begin, bool last);
  bool take_bare(News&, size_t begin, bool last);
  bool take_content(News&, size_t begin, bool last);
  void add_calls(News&, std::vector<ToolCall>, size_t end);
  std::vector<ToolCall> calls_in(std::string_view json);

  std::vector<std::string> names_;
  std::string held_;
  size_t at_ = 0;                      // of held_, where what is undecided begins
  size_t no_close_until_ = 0;          // of held_: no closing tag begins in [at_, here)
  size_t bare_at_ = 0, bare_end_ = 0;  // of held_: a call without tags that is not over, as far as it was read
  Nesting bare_;
  size_t n_read_ = 0, n_tried_ = 0;  // bytes that came; that were looked through for calls
  bool any_calls_ = false, any_content_ = false;
  bool after_call_ = false;  // white space is dropped here
};

}  // namespace mr
