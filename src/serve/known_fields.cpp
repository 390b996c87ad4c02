#include "serve/known_fields.h"

#include <algorithm>
#include <array>
#include <vector>

#include "core/words.h"
#include "serve/api_error.h"

namespace mr {

namespace {

// As listed in openapi.json; a test compares them.
constexpr std::string_view common[] = {"model",
                                       "n",
                                       "stream",
                                       "stream_options",
                                       "temperature",
                                       "top_p",
                                       "top_k",
                                       "min_p",
                                       "logit_bias",
                                       "frequency_penalty",
                                       "presence_penalty",
                                       "repetition_penalty",
                                       "seed",
                                       "stop",
                                       "ignore_eos",
                                       "priority",
                                       "cache_salt",
                                       "response_format",
                                       "user",
                                       "metadata",
                                       "store",
                                       "service_tier",
                                       "safety_identifier",
                                       "prompt_cache_key",
                                       "prompt_cache_retention"};
constexpr std::string_view of_chat[] = {"messages",    "max_tokens",          "max_completion_tokens", "logprobs", "top_logprobs", "tools",
                                        "tool_choice", "parallel_tool_calls", "chat_template_kwargs"};
constexpr std::string_view of_completion[] = {"prompt", "max_tokens", "logprobs", "echo", "best_of"};
constexpr std::string_view of_tokenize[] = {"model", "prompt",      "add_special_tokens",  "messages",
                                            "tools", "tool_choice", "chat_template_kwargs"};
constexpr std::string_view of_detokenize[] = {"model", "tokens"};

template <size_t A, size_t B>
constexpr auto joined(const std::string_view (&a)[A], const std::string_view (&b)[B]) {
  std::array<std::string_view, A + B> all{};
  std::copy(a, a + A, all.begin());
  std::copy(b, b + B, all.begin() + A);
  return all;
}
constexpr auto all_of_chat = joined(of_chat, common);
constexpr auto all_of_completion = joined(of_completion, common);

// Fields of OpenAI, vLLM, llama.cpp, TGI and ollama that mean something there.
struct Elsewhere {
  std::string_view name;
  std::string_view neutral;  // this value has no effect there; neither has null
  std::string_view instead;  // the equivalent here; empty: none yet
};
constexpr Elsewhere elsewhere[] = {
    {"audio", "", ""},
    {"function_call", "", "tool_choice"},
    {"functions", "", "tools"},
    {"modalities", "[\"text\"]", ""},
    {"prediction", "", ""},
    {"reasoning_effort", "", "chat_template_kwargs"},
    {"suffix", "", ""},
    {"verbosity", "", ""},
    {"web_search_options", "", ""},
    {"add_generation_prompt", "true", ""},
    {"allowed_token_ids", "", "logit_bias"},
    {"bad_words", "[]", "logit_bias"},
    {"chat_template", "", "serve --chat-template"},
    {"continue_final_message", "false", "/v1/completions"},
    {"documents", "", ""},
    {"guided_choice", "", ""},
    {"guided_grammar", "", ""},
    {"guided_json", "", ""},
    {"guided_regex", "", ""},
    {"include_stop_str_in_output", "false", ""},
    {"length_penalty", "1.0", ""},
    {"min_tokens", "0", ""},
    {"prompt_logprobs", "", "echo with logprobs"},
    {"return_token_ids", "false", ""},
    {"skip_special_tokens", "true", ""},
    {"spaces_between_special_tokens", "true", ""},
    {"stop_token_ids", "[]", "stop"},
    {"structured_outputs", "", ""},
    {"truncate_prompt_tokens", "", ""},
    {"use_beam_search", "false", ""},
    {"cache_prompt", "true", ""},
    {"dry_multiplier", "0.0", ""},
    {"grammar", "", ""},
    {"json_schema", "", ""},
    {"mirostat", "0", ""},
    {"n_keep", "0", ""},
    {"n_predict", "", "max_tokens"},
    {"n_probs", "0", "logprobs"},
    {"repeat_penalty", "1.0", "repetition_penalty"},
    {"samplers", "", ""},
    {"typical_p", "1.0", ""},
    {"xtc_probability", "0.0", ""},
    {"do_sample", "true", "temperature"},
    {"max_new_tokens", "", "max_tokens"},
    {"inputs", "", "prompt"},
    {"parameters", "", ""},
    {"format", "", ""},
    {"keep_alive", "", ""},
    {"num_ctx", "", "serve --max-context"},
    {"num_predict", "", "max_tokens"},
    {"options", "", ""},
    {"raw", "", ""},
    {"system", "", "messages"},
    {"template", "", "serve --chat-template"},
    {"think", "", "chat_template_kwargs"},
};

std::string unknown(std::string_view name, FieldNames known) {
  const std::string_view nearest = nearest_word(name, known);
  std::string text = sentence("there is no field '{}'", name.substr(0, 100));
  return nearest.empty() ? text : text + fmt::format(": did you mean '{}'?", nearest);
}

}  // namespace

FieldNames chat_fields() { return all_of_chat; }
FieldNames completion_fields() { return all_of_completion; }
FieldNames tokenize_fields() { return of_tokenize; }
FieldNames detokenize_fields() { return of_detokenize; }

void check_fields(const OrderedJson& body, FieldNames known, const std::function<void(const std::string&)>& on_unknown) {
  if (!body.is_object()) return;
  for (const auto& [name, value] : body.items()) {
    if (std::ranges::find(known, name) != known.end()) continue;
    auto other = std::ranges::find(elsewhere, name, &Elsewhere::name);
    const bool is_other = other != std::end(elsewhere);
    if (is_other && (value.is_null() || (!other->neutral.empty() && value == OrderedJson::parse(other->neutral)))) continue;
    std::string text = is_other ? fmt::format("{} is not supported here", name) : unknown(name, known);
    if (is_other && !other->instead.empty()) text += fmt::format(": use {}", other->instead);
    if (!on_unknown) refuse(name, "{}", text);
    on_unknown(text);
  }
}

}  // namespace mr
