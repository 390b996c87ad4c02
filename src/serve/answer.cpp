#include "serve/answer.h"

#include <cmath>
#include <ctime>
#include <random>

namespace mr {

std::string to_text(const OrderedJson& json) { return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace); }

static std::string sse(const OrderedJson& json) { return "data: " + to_text(json) + "\n\n"; }

static std::string fresh_id(const char* kind) {
  std::random_device entropy;
  return fmt::format("{}-{:08x}{:08x}{:08x}{:08x}", kind, entropy(), entropy(), entropy(), entropy());
}

// JSON has no infinity; -9999 is what OpenAI sends for it.
static double finite(float logprob) { return std::isfinite(logprob) ? double(logprob) : -9999.0; }

static OrderedJson finish_json(Finish f, bool called) {
  if (f == Finish::none) return nullptr;
  return f == Finish::stop && called ? "tool_calls" : std::string(name_of(f));
}

static OrderedJson call_json(const ToolCall& call) {
  return {{"id", call.id}, {"type", "function"}, {"function", {{"name", call.name}, {"arguments", call.arguments}}}};
}

AnswerWriter::AnswerWriter(const Asked& asked, const ServedModel& model)
    : asked_(asked),
      model_(model),
      id_(fresh_id(asked.chat ? "chatcmpl" : "cmpl")),
      created_(std::time(nullptr)),
      choices_(size_t(asked.n_choices())),
      prompts_(asked.prompts.size()),
      n_open_(asked.n_choices()) {
  if (!asked.tools.empty())
    for (Choice& c : choices_) c.reader.emplace(asked.tools);
  if (!asked.request.score_prompt || asked.stream) return;
  for (int i = 0; i < int(choices_.size()); i++)  // a stream counts the prompt's tokens as they arrive
    choices_[size_t(i)].offset = asked.prompt_characters[size_t(i / asked.n)];
}

// What an event says: text, and calls once they are whole.
ToolCallReader::News AnswerWriter::read(Choice& c, const TokenEvent& event) {
  if (!c.reader) return {event.text, {}};
  n_bytes_ -= c.reader->n_held();
  auto news = c.reader->add(event.text, event.finish != Finish::none);
  n_bytes_ += c.reader->n_held();
  if (!asked_.parallel_tool_calls) news.calls.resize(std::min(news.calls.size(), size_t(c.calls.empty() ? 1 : 0)));
  return news;
}

std::string AnswerWriter::add(int prompt, const TokenEvent& event) {
  const int index = prompt * asked_.n + event.choice;
  Choice& c = choices_[size_t(index)];
  n_generated_ += int64_t(event.tokens.size());
  if (event.finish != Finish::none) {
    n_open_--;
    c.finish = event.finish;
    if (event.choice == 0) n_cached_ += event.timing.n_cached;
  }
  const ToolCallReader::News news = read(c, event);
  if (asked_.stream) return chunk(index, c, event, news);
  collect(prompt, c, event, news);
  return {};
}

void AnswerWriter::collect(int prompt, Choice& c, const TokenEvent& event, const ToolCallReader::News& news) {
  c.text += news.content;
  c.calls.insert(c.calls.end(), news.calls.begin(), news.calls.end());
  n_bytes_ += news.content.size();
  if (!model_.tokenizer) {
    c.tokens.insert(c.tokens.end(), event.tokens.begin(), event.tokens.end());
    n_bytes_ += 8 * event.tokens.size();
  }
  for (const ToolCall& call : news.calls) n_bytes_ += sizeof call + call.name.size() + call.arguments.size();
  Prompt& p = prompts_[size_t(prompt)];
  if (!asked_.chat && !p.echo) n_bytes_ += size_t(asked_.n) * (echo_of(prompt).size() + 8 * echoed_tokens(prompt).size());
  if (!asked_.logprobs) return;
  append(p.logprobs, event.prompt, p.offset, asked_.n);
  append(c.logprobs, event.sampled, c.offset, 1);
}

// Appends the lists of `sampled`. times: how often they will be written.
void AnswerWriter::append(Lists& lists, std::span<const Sampled> sampled, size_t& offset, int times) {
  if (sampled.empty()) return;
  const OrderedJson json = logprobs_of(sampled, offset);
  size_t i = 0;
  for (const auto& [key, list] : json.items()) {
    if (!list.is_array()) continue;
    const std::string text = to_text(list);
    if (lists.size() <= i) lists.emplace_back();
    std::string& items = lists[i++];
    if (!items.empty()) items += ',';
    items.append(text, 1, text.size() - 2);
    n_bytes_ += text.size() * size_t(times);
  }
}

const std::string& AnswerWriter::echo_of(int prompt) {
  auto& echo = prompts_[size_t(prompt)].echo;
  if (!echo) echo = asked_.echo && model_.tokenizer ? model_.tokenizer->decode(asked_.prompts[size_t(prompt)], true) : std::string();
  return *echo;
}

std::vector<int32_t> AnswerWriter::echoed_tokens(int prompt) const {
  return asked_.echo && !model_.tokenizer ? asked_.prompts[size_t(prompt)] : std::vector<int32_t>();
}

OrderedJson AnswerWriter::head(const char* chat_object, const char* text_object) const {
  return {{"id", id_}, {"object", asked_.chat ? chat_object : text_object}, {"created", created_}, {"model", model_.name}};
}

OrderedJson AnswerWriter::usage() const {
  int64_t n_prompt = asked_.n_prompt_tokens();
  OrderedJson u{{"prompt_tokens", n_prompt}, {"completion_tokens", n_generated_}, {"total_tokens", n_prompt + n_generated_}};
  u["prompt_tokens_details"] = {{"cached_tokens", n_cached_}};
  return u;
}

// Appends a member to "{...}".
static void append_member(std::string& object, std::string_view name, std::string_view value) {
  object.pop_back();
  object += fmt::format("{}\"{}\":", object.size() > 1 ? "," : "", name);
  object += value;
  object += '}';
}

std::string AnswerWriter::whole() {
  std::string body = to_text(head("chat.completion", "text_completion"));
  body.reserve(body.size() + n_bytes_ + n_bytes_ / 8 + 256 * (choices_.size() + 1));
  body.pop_back();
  body += ",\"choices\":[";
  for (int i = 0; i < int(choices_.size()); i++) {
    if (i > 0) body += ',';
    body += choice_text(i);
    choices_[size_t(i)] = {};
  }
  body += "]}";
  append_member(body, "usage", to_text(usage()));
  return body;
}

std::string AnswerWriter::logprobs_text(const Lists& prompt, const Lists& answer) const {
  size_t offset = 0, i = 0;
  std::string text = "{}";
  const OrderedJson empty = logprobs_of({}, offset);
  for (const auto& [key, list] : empty.items()) {
    std::string value = to_text(list);
    if (list.is_array()) {
      const std::string before = i < prompt.size() ? prompt[i] : "", behind = i < answer.size() ? answer[i] : "";
      value = '[' + before + (before.empty() || behind.empty() ? "" : ",") + behind + ']';
      i++;
    }
    append_member(text, key, value);
  }
  return text;
}

std::string AnswerWriter::choice_text(int index) {
  Choice& c = choices_[size_t(index)];
  const int prompt = index / asked_.n;
  OrderedJson j{{"index", index}};
  if (asked_.chat)
    j["message"] = {{"role", "assistant"}, {"content", c.text}};
  else
    j["text"] = echo_of(prompt) + c.text;
  if (!model_.tokenizer) {
    std::vector<int32_t> tokens = echoed_tokens(prompt);
    tokens.insert(tokens.end(), c.tokens.begin(), c.tokens.end());
    j["token_ids"] = std::move(tokens);
  }
  if (!c.calls.empty()) {
    if (c.text.empty()) j["message"]["content"] = nullptr;
    for (const ToolCall& call : c.calls) j["message"]["tool_calls"].push_back(call_json(call));
  }
  std::string text = to_text(j);
  append_member(text, "logprobs", asked_.logprobs ? logprobs_text(prompts_[size_t(prompt)].logprobs, c.logprobs) : "null");
  append_member(text, "finish_reason", to_text(finish_json(c.finish, !c.calls.empty())));
  return text;
}

std::string AnswerWriter::event(int index, OrderedJson content, OrderedJson logprobs, OrderedJson finish,
                                std::span<const int32_t> tokens) const {
  OrderedJson body = head("chat.completion.chunk", "text_completion");
  OrderedJson choice{{"index", index}};
  choice[asked_.chat ? "delta" : "text"] = std::move(content);
  if (!model_.tokenizer) choice["token_ids"] = std::vector<int32_t>(tokens.begin(), tokens.end());
  choice["logprobs"] = std::move(logprobs);
  choice["finish_reason"] = std::move(finish);
  body["choices"] = OrderedJson::array();
  body["choices"].push_back(std::move(choice));
  if (asked_.include_usage) body["usage"] = nullptr;
  return sse(body);
}

std::string AnswerWriter::chunk(int index, Choice& c, const TokenEvent& event, const ToolCallReader::News& news) {
  std::string out, text;
  std::vector<int32_t> tokens;
  if (!c.begun) {
    c.begun = true;
    tokens = echoed_tokens(index / asked_.n);
    if (asked_.chat) out = this->event(index, {{"role", "assistant"}, {"content", ""}}, nullptr, nullptr);
    text = echo_of(index / asked_.n);
    if (!asked_.request.score_prompt) c.offset = n_characters(text);  // else the prompt's tokens are counted
  }
  text += news.content;
  if (!model_.tokenizer) tokens.insert(tokens.end(), event.tokens.begin(), event.tokens.end());
  OrderedJson logprobs;
  std::vector<Sampled> all;
  if (asked_.logprobs) {
    all = event.prompt;
    all.insert(all.end(), event.sampled.begin(), event.sampled.end());
  }
  if (!all.empty()) logprobs = logprobs_of(all, c.offset);
  if (text.empty() && tokens.empty() && news.calls.empty() && all.empty() && event.finish == Finish::none) return out;
  OrderedJson content = OrderedJson(text);
  if (asked_.chat) {
    content = OrderedJson::object();
    if (!text.empty() || !all.empty()) content["content"] = text;
    for (const ToolCall& call : news.calls) {
      content["tool_calls"].push_back({{"index", c.calls.size()}});
      content["tool_calls"].back().update(call_json(call));
      c.calls.push_back(call);
    }
  }
  return out + this->event(index, std::move(content), std::move(logprobs), finish_json(event.finish, !c.calls.empty()), tokens);
}

std::string AnswerWriter::stream_end() const {
  std::string out;
  if (asked_.include_usage) {
    OrderedJson body = head("chat.completion.chunk", "text_completion");
    body["choices"] = OrderedJson::array();
    body["usage"] = usage();
    out = sse(body);
  }
  return out + "data: [DONE]\n\n";
}

OrderedJson AnswerWriter::logprobs_of(std::span<const Sampled> tokens, size_t& offset) const {
  return asked_.chat ? chat_logprobs(tokens) : text_logprobs(tokens, offset);
}

OrderedJson AnswerWriter::chat_logprobs(std::span<const Sampled> tokens) const {
  auto entry = [&](int32_t id, float logprob) {
    std::string piece = model_.tokenizer ? model_.tokenizer->piece(id) : std::to_string(id);
    OrderedJson bytes = OrderedJson::array();
    for (unsigned char c : piece) bytes.push_back(int(c));
    return OrderedJson{{"token", piece}, {"logprob", finite(logprob)}, {"bytes", std::move(bytes)}};
  };
  OrderedJson content = OrderedJson::array();
  for (const Sampled& s : tokens) {
    OrderedJson e = entry(s.token, s.logprob);
    e["top_logprobs"] = OrderedJson::array();
    for (const TopToken& t : s.top) e["top_logprobs"].push_back(entry(t.token, t.logprob));
    content.push_back(std::move(e));
  }
  OrderedJson out;
  out["content"] = std::move(content);
  out["refusal"] = nullptr;
  return out;
}

static bool is_utf8(const std::string& bytes) {
  try {
    OrderedJson(bytes).dump();
    return true;
  } catch (const OrderedJson::exception&) {
    return false;
  }
}

// Part of a character is written as OpenAI does, so that different tokens stay different keys.
static std::string token_name(const Tokenizer* tokenizer, int32_t id) {
  if (!tokenizer) return fmt::format("token_id:{}", id);
  std::string piece = tokenizer->piece(id);
  if (is_utf8(piece)) return piece;
  std::string name = "bytes:";
  for (unsigned char c : piece) name += fmt::format("\\x{:02x}", c);
  return name;
}

OrderedJson AnswerWriter::text_logprobs(std::span<const Sampled> tokens, size_t& offset) const {
  OrderedJson names = OrderedJson::array(), values = OrderedJson::array(), tops = OrderedJson::array(), offsets = OrderedJson::array();
  for (const Sampled& s : tokens) {
    const bool known = !std::isnan(s.logprob);  // nothing predicts a prompt's first token
    names.push_back(token_name(model_.tokenizer, s.token));
    values.push_back(known ? OrderedJson(finite(s.logprob)) : OrderedJson(nullptr));
    OrderedJson top = OrderedJson::object();
    for (const TopToken& t : s.top) top[token_name(model_.tokenizer, t.token)] = finite(t.logprob);
    if (known) top[token_name(model_.tokenizer, s.token)] = finite(s.logprob);
    tops.push_back(known ? std::move(top) : OrderedJson(nullptr));
    offsets.push_back(offset);
    offset += shown_characters(model_, s.token);
  }
  OrderedJson out;
  out["tokens"] = std::move(names);
  out["token_logprobs"] = std::move(values);
  out["top_logprobs"] = asked_.request.sampling.logprobs > 0 ? std::move(tops) : OrderedJson(nullptr);
  out["text_offset"] = std::move(offsets);
  return out;
}

}  // namespace mr
