#include "serve/openai.h"

#include <algorithm>
#include <limits>

#include "core/words.h"
#include "serve/known_fields.h"
#include "serve/tools_in_prompt.h"

namespace mr {

static constexpr size_t max_name = 512;        // bytes of a model's name, a salt
static constexpr size_t max_text = 64u << 20;  // bytes of a prompt; the body's limit is the smaller one
static constexpr int most = std::numeric_limits<int>::max();

Request Asked::request_of(size_t prompt) const {
  Request r = request;
  r.prompt = prompts[prompt];
  return r;
}

int64_t Asked::n_prompt_tokens() const {
  int64_t n = 0;
  for (const auto& p : prompts) n += int64_t(p.size());
  return n;
}

size_t n_characters(std::string_view utf8) {
  size_t n = 0;
  for (char c : utf8) n += (c & 0xC0) != 0x80;
  return n;
}

size_t shown_characters(const ServedModel& model, int32_t token) {
  return model.tokenizer && !model.tokenizer->is_special(token) ? n_characters(model.tokenizer->piece(token)) : 0;
}

size_t Asked::bytes() const {
  constexpr size_t node = 48;
  const SamplingParams& p = request.sampling;
  size_t n_sampling = p.logit_bias.size() * node + request.cache_salt.size();
  for (const std::string& s : p.stop) n_sampling += node + s.size();
  size_t n_tools = 0;
  for (const std::string& s : tools) n_tools += node + s.size();
  const size_t a_prompt = sizeof(Request) + n_sampling, a_choice = 512 + n_tools;
  return n_sampling + prompts.size() * a_prompt + size_t(n_choices()) * a_choice + 2 * sizeof(int32_t) * size_t(n_prompt_tokens());
}

static const Tokenizer& need_tokenizer(const ServedModel& model, const std::string& param) {
  if (!model.tokenizer) refuse(param, "this model comes without a tokenizer: give the prompt as token ids");
  return *model.tokenizer;
}

bool is_name_of(const std::string& name, const ServedModel& model) {
  return name == model.name || std::ranges::find(model.aliases, name) != model.aliases.end();
}

ApiError no_such_model(const std::string& name, const ServedModel& model) {
  return {404, sentence("there is no model '{}' here: '{}' is served", name, model.name), "model", "model_not_found"};
}

static void check_model(const Fields& f, const ServedModel& model) {
  std::string name = f.text("model", max_name);
  if (!name.empty() && !is_name_of(name, model)) throw no_such_model(name, model);
}

static void check_format(const Fields& f) {
  if (const OrderedJson* format = f.find("response_format")) {
    std::string type = Fields(*format, "response_format.").text("type", max_name);
    if (type != "text") refuse("response_format", "response_format must be of type text, not '{}': nothing else is supported", type);
  }
}

static std::map<int32_t, float> read_biases(const Fields& f, const ServedModel& model, const RequestLimits& limits) {
  std::map<int32_t, float> biases;
  const OrderedJson* object = f.find("logit_bias");
  if (!object) return biases;
  Fields entries(*object, "logit_bias.");
  if (object->size() > limits.max_biases)
    refuse("logit_bias", "logit_bias has {} entries, but at most {} are allowed", object->size(), limits.max_biases);
  for (const auto& [key, value] : object->items()) {
    bool digits = !key.empty() && key.size() < 10 && key.find_first_not_of("0123456789") == std::string::npos;
    if (!digits || std::stoi(key) >= model.vocab)
      refuse("logit_bias", "logit_bias names token '{}', but token ids are 0 to {}", key, model.vocab - 1);
    biases[std::stoi(key)] = float(entries.number(key, 0, -100, 100));
  }
  return biases;
}

static std::vector<std::string> read_stops(const Fields& f, const RequestLimits& limits) {
  const OrderedJson* value = f.find("stop");
  if (!value) return {};
  if (value->is_string()) return {value->get<std::string>()};
  std::vector<std::string> stops;
  for (const OrderedJson& item : *f.list("stop", limits.max_stop)) {
    if (!item.is_string()) refuse("stop", "stop must be a string or a list of strings, not a list with {}", item.type_name());
    stops.push_back(item.get<std::string>());
  }
  return stops;
}

static std::optional<uint64_t> read_seed(const Fields& f) {
  const OrderedJson* value = f.find("seed");
  if (!value) return {};
  if (value->is_number_unsigned()) return value->get<uint64_t>();
  return uint64_t(f.integer("seed", 0, std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()));
}

static SamplingParams read_sampling(const Fields& f, const ServedModel& model, const RequestLimits& limits) {
  constexpr double tiny = 1e-6;
  SamplingParams p = model.sampling.over({});
  p.temperature = float(f.number("temperature", p.temperature, 0, 100));
  p.top_k = int(std::max<int64_t>(0, f.integer("top_k", p.top_k, -1, most)));  // -1: all, as in vLLM
  p.top_p = float(f.number("top_p", p.top_p, tiny, 1));
  p.min_p = float(f.number("min_p", p.min_p, 0, 1));
  p.repetition_penalty = float(f.number("repetition_penalty", p.repetition_penalty, tiny, 100));
  p.frequency_penalty = float(f.number("frequency_penalty", 0, -2, 2));
  p.presence_penalty = float(f.number("presence_penalty", 0, -2, 2));
  p.logit_bias = read_biases(f, model, limits);
  p.seed = read_seed(f);
  p.stop = read_stops(f, limits);
  p.ignore_eos = f.flag("ignore_eos", false);
  if (!p.stop.empty()) need_tokenizer(model, "stop");
  return p;
}

// The fields of both kinds of completion.
static Asked read_common(const Fields& f, const ServedModel& model, const RequestLimits& limits) {
  check_model(f, model);
  check_format(f);
  Asked asked;
  asked.n = int(f.integer("n", 1, 1, model.max_choices));
  if (f.find("best_of") && f.integer("best_of", 1, 1, most) != asked.n) refuse("best_of", "best_of other than n is not supported");
  asked.stream = f.flag("stream", false);
  if (const OrderedJson* options = f.find("stream_options")) {
    if (!asked.stream) refuse("stream_options", "stream_options is only allowed with stream");
    asked.include_usage = Fields(*options, "stream_options.").flag("include_usage", false);
  }
  Request& r = asked.request;
  r.n = asked.n;
  r.sampling = read_sampling(f, model, limits);
  r.priority = int(f.integer("priority", 0, -1000000, 1000000));
  r.cache_salt = f.text("cache_salt", max_name);
  return asked;
}

static void check_prompt(const std::vector<int32_t>& tokens, const ServedModel& model, const std::string& param, int n_answer) {
  if (tokens.empty()) refuse(param, "the prompt is empty");
  if (int64_t(tokens.size()) + std::min(n_answer, 1) > model.max_context)
    throw ApiError(400,
                   fmt::format("the prompt has {}, but the context holds {}, the answer included", counted(int64_t(tokens.size()), "token"),
                               model.max_context),
                   param, "context_length_exceeded");
}

// Tokens that fit after the longest prompt, in the context and in the memory for state.
static int longest_answer(const Asked& asked, const ServedModel& model) {
  int64_t longest = 0;
  for (const auto& p : asked.prompts) longest = std::max(longest, int64_t(p.size()));
  return int(std::max<int64_t>(1, std::min<int64_t>(model.max_context, model.max_state + 1) - longest));
}

// Content in parts becomes one string, which every template understands.
static std::string joined_parts(const OrderedJson& parts, const std::string& param) {
  std::string text;
  for (const OrderedJson& part : parts) {
    Fields p(part, param + ".");
    if (std::string type = p.text("type", max_name); type != "text")
      refuse(param, "{} has a part of type '{}', but only text is supported", param, type);
    text += p.text("text", max_text);
  }
  return text;
}

// Earlier tool calls carry their arguments as a JSON string; templates expect an object.
static void open_arguments(OrderedJson& message, const Allowance& allowance, const std::string& param) {
  auto calls = message.find("tool_calls");
  if (calls == message.end() || calls->is_null()) return;
  if (!calls->is_array()) refuse(param + ".tool_calls", "{}.tool_calls must be a list, not {}", param, calls->type_name());
  for (OrderedJson& call : *calls) {
    if (!call.is_object() || !call.contains("function") || !call["function"].is_object())
      refuse(param + ".tool_calls", "{}.tool_calls must hold objects with a function", param);
    OrderedJson& function = call["function"];
    if (!function.contains("arguments") || !function["arguments"].is_string()) continue;
    const std::string text = function["arguments"];
    try {
      size_t held = 0;
      OrderedJson arguments = parse_json<OrderedJson>(text, "", {}, [&](size_t n) {
        allowance.hold(2 * (n - held));  // the template's context is another copy
        held = n;
      });
      if (arguments.is_object()) function["arguments"] = std::move(arguments);
    } catch (const Error&) {  // they stay a string
    }
  }
}

static OrderedJson read_messages(const Fields& f, const RequestLimits& limits) {
  const OrderedJson* list = f.list("messages", limits.max_messages);
  if (!list || list->empty()) refuse("messages", "messages must be a list of at least one message");
  OrderedJson messages = OrderedJson::array();
  for (size_t i = 0; i < list->size(); i++) {
    const std::string param = fmt::format("messages[{}]", i);
    Fields m((*list)[i], param + ".");
    if (m.text("role", max_name).empty()) refuse(param + ".role", "{}.role is missing", param);
    messages.push_back((*list)[i]);
    const OrderedJson* content = m.find("content");
    if (content && content->is_array())
      messages.back()["content"] = joined_parts(*content, param + ".content");
    else if (content && !content->is_string())
      refuse(param + ".content", "{}.content must be a string or a list of parts", param);
    else if (!content && !m.find("tool_calls"))
      refuse(param + ".content", "{}.content is missing", param);
    open_arguments(messages.back(), limits.allowance, param);
  }
  return messages;
}

// The tools for the template; null: none, or tool_choice is none.
static const OrderedJson* read_tools(const Fields& f, std::vector<std::string>& names) {
  const OrderedJson* tools = f.list("tools", 1024);
  const OrderedJson* choice = f.find("tool_choice");
  if (choice && *choice != "none" && *choice != "auto")
    refuse("tool_choice", "tool_choice must be auto or none: that the model calls a function cannot be promised");
  if (!tools || tools->empty() || (choice && *choice == "none")) return nullptr;
  for (size_t i = 0; i < tools->size(); i++) {
    const std::string param = fmt::format("tools[{}]", i);
    Fields tool((*tools)[i], param + ".");
    const OrderedJson* function = tool.find("function");
    if (!function) refuse(param + ".function", "{}.function is missing", param);
    names.push_back(Fields(*function, param + ".function.").text("name", max_name));
    if (names.back().empty()) refuse(param + ".function.name", "{}.function.name is missing", param);
  }
  return tools;
}

static std::vector<int32_t> chat_tokens(const Fields& f, const ServedModel& model, const RequestLimits& limits,
                                        std::vector<std::string>& tool_names) {
  OrderedJson messages = read_messages(f, limits);
  if (!model.chat) refuse("messages", "this model comes without a chat template: use /v1/completions, or serve it with --chat-template");
  OrderedJson extra = OrderedJson::object();
  if (const OrderedJson* tools = read_tools(f, tool_names)) {
    if (model.chat->shows_tools(limits.allowance))
      extra["tools"] = *tools;
    else if (model.tools_in_system_prompt)
      put_tools_into_prompt(messages, *tools);
    else
      refuse("tools",
             "this model's chat template has no place for tools, so it would not see them: millrace serve --tools-in-system-prompt "
             "describes them there");
  }
  if (const OrderedJson* more = f.find("chat_template_kwargs")) {
    Fields is_object(*more, "chat_template_kwargs.");
    for (const auto& [key, value] : more->items()) extra[key] = value;
  }
  try {
    return model.chat->encode(messages, extra, limits.allowance);
  } catch (const Stopped&) {
    throw;
  } catch (const Error& e) {  // its message may quote the conversation
    ApiError error(400, e.what(), "messages", "template_error");
    error.for_log = "the chat template refuses the conversation";
    throw error;
  }
}

Asked read_chat_completion(const OrderedJson& body, const ServedModel& model, const RequestLimits& limits) {
  Fields f(body);
  check_fields(body, chat_fields(), limits.on_unknown);
  Asked asked = read_common(f, model, limits);
  asked.chat = true;
  SamplingParams& sampling = asked.request.sampling;
  asked.logprobs = f.flag("logprobs", false);
  sampling.logprobs = int(f.integer("top_logprobs", 0, 0, std::min(limits.max_logprobs, model.vocab)));
  if (sampling.logprobs && !asked.logprobs) refuse("top_logprobs", "top_logprobs is only allowed with logprobs");
  const char* name = f.find("max_completion_tokens") ? "max_completion_tokens" : "max_tokens";
  int64_t n_answer = f.integer(name, -1, 1, most);
  asked.prompts = {chat_tokens(f, model, limits, asked.tools)};
  asked.parallel_tool_calls = f.flag("parallel_tool_calls", true);
  check_prompt(asked.prompts[0], model, "messages", 1);
  sampling.max_tokens = n_answer > 0 ? int(n_answer) : longest_answer(asked, model);
  return asked;
}

static std::vector<int32_t> read_ids(const OrderedJson& list, const ServedModel& model, const std::string& param) {
  std::vector<int32_t> ids;
  ids.reserve(list.size());
  for (const OrderedJson& item : list) {
    if (!item.is_number_integer()) refuse(param, "{} must hold token ids only, not {}", param, item.type_name());
    if (item < 0 || item >= model.vocab) refuse(param, "{} has token {}, but token ids are 0 to {}", param, item.dump(), model.vocab - 1);
    ids.push_back(item.get<int32_t>());
  }
  return ids;
}

static std::vector<int32_t> read_prompt(const OrderedJson& prompt, const ServedModel& model, const RequestLimits& limits,
                                        const std::string& param) {
  if (prompt.is_string()) return need_tokenizer(model, param).encode(prompt.get_ref<const std::string&>(), true, true, limits.allowance);
  if (prompt.is_array()) return read_ids(prompt, model, param);
  refuse(param, "{} must be a string, token ids, or a list of either, not {}", param, prompt.type_name());
}

static std::vector<std::vector<int32_t>> read_prompts(const Fields& f, const ServedModel& model, const RequestLimits& limits) {
  const OrderedJson* prompt = f.find("prompt");
  if (!prompt) refuse("prompt", "prompt is missing");
  bool many = prompt->is_array() && !prompt->empty() && !prompt->front().is_number();
  if (!many) return {read_prompt(*prompt, model, limits, "prompt")};
  std::vector<std::vector<int32_t>> prompts;
  for (const OrderedJson& p : *f.list("prompt", limits.max_prompts))
    prompts.push_back(read_prompt(p, model, limits, fmt::format("prompt[{}]", prompts.size())));
  return prompts;
}

Asked read_completion(const OrderedJson& body, const ServedModel& model, const RequestLimits& limits) {
  Fields f(body);
  check_fields(body, completion_fields(), limits.on_unknown);
  Asked asked = read_common(f, model, limits);
  asked.echo = f.flag("echo", false);
  asked.logprobs = f.find("logprobs") != nullptr;
  SamplingParams& sampling = asked.request.sampling;
  sampling.logprobs = int(f.integer("logprobs", 0, 0, std::min(limits.max_logprobs, model.vocab)));
  sampling.max_tokens = int(f.integer("max_tokens", 16, 0, most));
  asked.request.score_prompt = asked.echo && asked.logprobs;
  if (asked.request.score_prompt && asked.stream && asked.n > 1)
    refuse("echo", "echo with logprobs and an n of {} cannot be streamed: ask for n = 1, or for no stream", asked.n);
  asked.prompts = read_prompts(f, model, limits);
  if (asked.n_choices() > limits.max_answers)
    refuse("n", "{} prompts with an n of {} are {} answers, but at most {} are allowed in one request", asked.prompts.size(), asked.n,
           asked.n_choices(), limits.max_answers);
  for (const auto& p : asked.prompts) check_prompt(p, model, "prompt", sampling.max_tokens);
  if (asked.request.score_prompt)
    for (const auto& p : asked.prompts) {
      size_t& n = asked.prompt_characters.emplace_back(0);
      for (int32_t token : p) n += shown_characters(model, token);
    }
  return asked;
}

std::vector<int32_t> read_tokenize(const OrderedJson& body, const ServedModel& model, const RequestLimits& limits) {
  Fields f(body);
  check_fields(body, tokenize_fields(), limits.on_unknown);
  check_model(f, model);
  const std::string text = f.text("prompt", max_text);  // validated even where messages replace it
  const bool special = f.flag("add_special_tokens", true);
  std::vector<std::string> tools;
  if (f.find("messages")) return chat_tokens(f, model, limits, tools);
  if (!f.find("prompt")) refuse("prompt", "prompt is missing");
  for (const char* field : {"tools", "tool_choice", "chat_template_kwargs"})
    if (f.find(field)) refuse(field, "{} goes with messages, not with a prompt", field);
  return need_tokenizer(model, "prompt").encode(text, special, true, limits.allowance);
}

std::string read_detokenize(const OrderedJson& body, const ServedModel& model, const RequestLimits& limits) {
  Fields f(body);
  check_fields(body, detokenize_fields(), limits.on_unknown);
  check_model(f, model);
  const OrderedJson* tokens = f.list("tokens", max_text);
  if (!tokens) refuse("tokens", "tokens is missing");
  const Tokenizer& tokenizer = need_tokenizer(model, "tokens");
  const std::vector<int32_t> ids = read_ids(*tokens, model, "tokens");
  size_t n_bytes = 0;
  for (int32_t id : ids) n_bytes += tokenizer.piece(id).size();
  limits.allowance.check_time("reading tokens");
  limits.allowance.hold(4 * n_bytes);  // the text, the answer's JSON of it, and the answer
  return tokenizer.decode(ids, false);
}

}  // namespace mr
