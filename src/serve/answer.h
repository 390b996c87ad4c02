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

  // Notes the news of one answer. In a stream: the bytes to send for it, which may be none.
  std::string add(int prompt, const TokenEvent&);

  bool complete() const { return n_open_ == 0; }
  std::string whole() const;       // not streamed: the body
  std::string stream_end() const;  // streamed: the usage if it is wanted, and the end mark

 private:
  struct Choice {
    std::string text;
    std::optional<ToolCallReader> reader;  // where there are tools
    std::vector<ToolCall> calls;
    std::vector<Sampled> sampled;  // kept only for a whole answer with logprobs
    size_t offset = 0;             // characters of the text before the next token
    Finish finish = Finish::none;
    bool begun = false;
  };

  OrderedJson head(const char* chat_object, const char* text_object) const;
  OrderedJson usage() const;
  OrderedJson choice_json(int index) const;
  ToolCallReader::News read(Choice&, const TokenEvent&) const;
  std::string chunk(int index, Choice&, const TokenEvent&, const ToolCallReader::News&);
  std::string event(int index, OrderedJson content, OrderedJson logprobs, OrderedJson finish) const;
  OrderedJson logprobs_of(std::span<const Sampled>, size_t& offset) const;
  OrderedJson chat_logprobs(std::span<const Sampled>) const;
  OrderedJson text_logprobs(std::span<const Sampled>, size_t& offset) const;
  std::string echo_of(int prompt) const;

  const Asked& asked_;
  const ServedModel& model_;
  std::string id_;
  int64_t created_;
  std::vector<Choice> choices_;
  std::vector<std::vector<Sampled>> scores_;  // of the prompts
  int n_open_;
  int64_t n_generated_ = 0, n_cached_ = 0;
};

std::string to_text(const OrderedJson&);  // compact; bytes that are no UTF-8 become U+FFFD

}  // namespace mr
