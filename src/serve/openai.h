// OpenAI's requests, read and checked: from a body to what the engine is asked.
#pragma once

#include <string>
#include <vector>

#include "engine/chat.h"
#include "engine/request.h"
#include "serve/fields.h"

namespace mr {

// The model as requests need to know it.
struct ServedModel {
  std::string name;
  const Tokenizer* tokenizer = nullptr;  // null: prompts are token ids, answers have no text
  const ChatFormat* chat = nullptr;      // null: there is no template
  int vocab = 0;
  int max_context = 0;    // tokens
  int64_t max_state = 0;  // tokens for which there is state
  int max_choices = 1;    // n
  int64_t created = 0;    // Unix time
};

struct RequestLimits {
  size_t max_messages = 4096;
  size_t max_prompts = 256;
  size_t max_stop = 16;
  size_t max_biases = 1024;
  int max_logprobs = 20;
};

// What one call asks for. Answer i of prompt p is the choice p * n + i.
struct Asked {
  bool chat = false, stream = false, include_usage = false, echo = false, logprobs = false;
  int n = 1;
  std::vector<std::string> tools;   // functions that the answer may call
  bool parallel_tool_calls = true;  // more than one in an answer
  std::vector<std::vector<int32_t>> prompts;
  Request request;  // all but the prompt

  Request request_of(size_t prompt) const;
  int n_choices() const { return n * int(prompts.size()); }
  int64_t n_prompt_tokens() const;
};

Asked read_chat_completion(const OrderedJson& body, const ServedModel&, const RequestLimits& = {});
Asked read_completion(const OrderedJson& body, const ServedModel&, const RequestLimits& = {});
// {"prompt" | "messages"}: the tokens that a completion would see. {"tokens"}: the text.
std::vector<int32_t> read_tokenize(const OrderedJson& body, const ServedModel&, const RequestLimits& = {});
std::string read_detokenize(const OrderedJson& body, const ServedModel&);

}  // namespace mr
