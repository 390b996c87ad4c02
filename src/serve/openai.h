// OpenAI's requests, parsed and validated: from a JSON body to the engine's Request.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/chat.h"
#include "engine/generation_defaults.h"
#include "engine/request.h"
#include "serve/fields.h"

namespace mr {

// What validating a request needs to know about the model.
struct ServedModel {
  std::string name;
  std::vector<std::string> aliases;      // other names that it answers to
  const Tokenizer* tokenizer = nullptr;  // null: prompts are token ids, answers have no text
  const ChatFormat* chat = nullptr;      // null: there is no template
  int vocab = 0;
  int max_context = 0;                  // tokens
  int64_t max_state = 0;                // tokens for which there is state
  int max_choices = 1;                  // n
  int64_t created = 0;                  // Unix time
  GenerationDefaults sampling = {};     // for fields that a request leaves out
  bool tools_in_system_prompt = false;  // where the template does not show them; otherwise they are refused
};

ApiError no_such_model(const std::string& name, const ServedModel&);  // 404
bool is_name_of(const std::string& name, const ServedModel&);

struct RequestLimits {
  size_t max_messages = 4096;
  size_t max_prompts = 256;
  size_t max_stop = 16;
  size_t max_biases = 1024;
  int max_answers = 1024;  // of all prompts together
  int max_logprobs = 20;
  Allowance allowance;  // for parsing it

  std::function<void(const std::string&)> on_unknown;  // called for an unknown field; empty: that is an error
};

// One validated request. Answer i of prompt p is choice p * n + i.
struct Asked {
  bool chat = false, stream = false, include_usage = false, echo = false, logprobs = false;
  int n = 1;
  std::vector<std::string> tools;   // functions that the answer may call
  bool parallel_tool_calls = true;  // more than one in an answer
  std::vector<std::vector<int32_t>> prompts;
  std::vector<size_t> prompt_characters;  // of the prompts' text, where they are scored
  Request request;                        // all but the prompt

  Request request_of(size_t prompt) const;
  int n_choices() const { return n * int(prompts.size()); }
  int64_t n_prompt_tokens() const;
  size_t bytes() const;  // its memory, the engine's copy included, roughly
};

size_t n_characters(std::string_view utf8);
size_t shown_characters(const ServedModel&, int32_t token);  // that a token adds to the text

Asked read_chat_completion(const OrderedJson& body, const ServedModel&, const RequestLimits& = {});
Asked read_completion(const OrderedJson& body, const ServedModel&, const RequestLimits& = {});
// {"prompt" | "messages"}: the tokens of such a completion. {"tokens"}: their text.
std::vector<int32_t> read_tokenize(const OrderedJson& body, const ServedModel&, const RequestLimits& = {});
std::string read_detokenize(const OrderedJson& body, const ServedModel&, const RequestLimits& = {});

}  // namespace mr
