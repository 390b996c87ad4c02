// Calls of the client's functions in what a model writes. Models write them in the form that their templates teach:
//   <tool_call>{"name": ..., "arguments": {...}}</tool_call>      Hermes, Qwen; SmolLM2 puts a list between the tags
//   {"name": ..., "parameters": {...}}                            Llama 3: the whole answer; several are separated by ;
//   [TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]          Mistral: the whole answer
// Marks that are special tokens do not show in the text, so the last two are known by their JSON alone.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace mr {

struct ToolCall {
  std::string id, name, arguments;  // arguments: JSON, as text
};

// Reads one answer as it comes. Only a call of a function that the client named is one; all else is content, to the byte, except
// for white space around calls.
class ToolCallReader {
 public:
  explicit ToolCallReader(std::vector<std::string> names) : names_(std::move(names)) {}

  struct News {
    std::string content;
    std::vector<ToolCall> calls;  // whole ones
  };
  News add(std::string_view text, bool last);  // what may still become a call is held back until it is the last text

 private:
  bool take(News&, bool last);
  bool take_tagged(News&, size_t begin, bool last);
  bool take_bare(News&, size_t begin, bool last);
  bool take_content(News&, size_t begin, bool last);
  void add_calls(News&, std::vector<ToolCall>, size_t end);
  std::vector<ToolCall> calls_in(std::string_view json) const;

  std::vector<std::string> names_;
  std::string held_;
  bool any_calls_ = false, any_content_ = false;
  bool after_call_ = false;  // white space is dropped here
};

}  // namespace mr
