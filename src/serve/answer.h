// OpenAI's answers: from the engine's events to a chat.completion or text_completion, whole or in chunks.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "serve/openai.h"
#include "serve/tool_calls.h"

namespace mr {

class AnswerWriter {
 public:
  AnswerWriter(const Asked&, const ServedModel&);

  // Takes one event. In a stream: returns the bytes to send for it, which may be none.
  std::string add(int prompt, const TokenEvent&);

  bool complete() const { return n_open_ == 0; }
  size_t bytes() const { return n_bytes_; }  // of the whole answer, as far as it is known
  std::string whole();                       // not streamed: the body; empties the collected choices
  std::string stream_end() const;            // streamed: the usage if requested, and the end marker

 private:
  // Log-probabilities already serialized, the items of each list: "a,b". Serializing all of them at the end would block an I/O thread.
  using Lists = std::vector<std::string>;
  struct Choice {
    std::string text;
    std::vector<int32_t> tokens;           // kept only for a whole answer of a model without a tokenizer
    std::optional<ToolCallReader> reader;  // where there are tools
    std::vector<ToolCall> calls;
    Lists logprobs;     // kept only for a whole answer with log-probabilities
    size_t offset = 0;  // in characters, of the next token
    Finish finish = Finish::none;
    bool begun = false;
  };

  OrderedJson head(const char* chat_object, const char* text_object) const;
  OrderedJson usage() const;
  void collect(int prompt, Choice&, const TokenEvent&, const ToolCallReader::News&);
  void append(Lists&, std::span<const Sampled>, size_t& offset, int times);
  std::string choice_text(int index);
  std::string logprobs_text(const Lists& prompt, const Lists& answer) const;
  ToolCallReader::News read(Choice&, const TokenEvent&);
  std::string chunk(int index, Choice&, const TokenEvent&, const ToolCallReader::News&);
  std::string event(int index, OrderedJson content, OrderedJson logprobs, OrderedJson finish, std::span<const int32_t> tokens = {}) const;
  OrderedJson logprobs_of(std::span<const Sampled>, size_t& offset) const;
  OrderedJson chat_logprobs(std::span<const Sampled>) const;
  OrderedJson text_logprobs(std::span<const Sampled>, size_t& offset) const;
  const std::string& echo_of(int prompt);
  std::vector<int32_t> echoed_tokens(int prompt) const;  // instead of the text, for a model without a tokenizer

  const Asked& asked_;
  const ServedModel& model_;
  std::string id_;
  int64_t created_;
  std::vector<Choice> choices_;
  struct Prompt {
    Lists logprobs;
    size_t offset = 0;
    std::optional<std::string> echo;
  };
  std::vector<Prompt> prompts_;
  int n_open_;
  size_t n_bytes_ = 0;
  int64_t n_generated_ = 0, n_cached_ = 0;
};

std::string to_text(const OrderedJson&);  // compact; invalid UTF-8 becomes U+FFFD

}  // namespace mr
