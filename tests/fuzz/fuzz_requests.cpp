// A client's body, from bytes to what the engine is asked: checked, or refused with a sentence.
#include "fuzz/input.h"
#include "fuzz/mutate.h"
#include "serve/openai.h"
#include "serve/tool_calls.h"
#include "text/unicode.h"

using namespace mr;

static Tokenizer tiny_tokenizer() {
  Json vocab = Json::object(), added = Json::array();
  for (int c = 0; c < 95; c++) vocab[std::string(1, char(' ' + c))] = c;
  vocab["ab"] = 95;
  vocab["the"] = 96;
  vocab["th"] = 97;
  added.push_back({{"id", 98}, {"content", "<s>"}, {"special", true}});
  Json json{{"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", {"a b", "t h", "th e"}}, {"unk_token", "?"}}},
            {"added_tokens", added},
            {"decoder", {{"type", "Fuse"}}}};
  Json config{{"chat_template",
               "{% for m in messages %}<s>{{ m.role }}: {{ m.content }}{% if m.tool_calls %}{{ m.tool_calls }}{% endif %}{% endfor %}"
               "{% if tools %}{{ tools }}{% endif %}"}};
  return Tokenizer::from_json(json, &config);
}

static bool is_utf8(std::string_view text) { return valid_utf8_prefix(text) == text.size(); }

static void check_asked(const Asked& asked, const ServedModel& model) {
  if (asked.prompts.empty() || asked.n < 1) std::abort();
  for (const std::vector<int32_t>& prompt : asked.prompts)
    for (int32_t id : prompt)
      if (id < 0 || id >= model.vocab) std::abort();
  if (asked.n_choices() > RequestLimits().max_answers || asked.bytes() == 0) std::abort();
}

static void read_route(int route, const OrderedJson& body, const ServedModel& model, const RequestLimits& limits) {
  switch (route) {
    case 0:
      return check_asked(read_chat_completion(body, model, limits), model);
    case 1:
      return check_asked(read_completion(body, model, limits), model);
    case 2:
      for (int32_t id : read_tokenize(body, model, limits))
        if (id < 0 || id >= model.vocab) std::abort();
      return;
    default:
      if (!is_utf8(read_detokenize(body, model, limits))) std::abort();
  }
}

// What a model writes is a stranger's too. Pieces of any size are read the same.
static std::string read_calls(std::string_view text, size_t piece) {
  ToolCallReader reader({"f", "ab"});
  std::string content, calls;
  for (size_t at = 0; at < text.size(); at += piece) {
    ToolCallReader::News news = reader.add(text.substr(at, piece), at + piece >= text.size());
    content += news.content;
    for (const ToolCall& call : news.calls) calls += call.name + "(" + call.arguments + ")\n";
  }
  return content + "\n" + calls;
}

// The first byte chooses the route; whether unknown fields are borne; whether the model has a tokenizer; how a text is cut.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Tokenizer tokenizer = tiny_tokenizer();
  static const ChatFormat chat(tokenizer);
  static const ServedModel model{.name = "m",
                                 .tokenizer = &tokenizer,
                                 .chat = &chat,
                                 .vocab = tokenizer.vocab_size(),
                                 .max_context = 512,
                                 .max_state = 4096,
                                 .max_choices = 8};
  static const ServedModel without_text{.name = "m", .vocab = model.vocab, .max_context = 512, .max_state = 4096, .max_choices = 8};
  static const RequestLimits strict, lenient{.on_unknown = [](const std::string&) {}};
  if (size < 2) return 0;
  const std::string_view text = fuzz::as_text(data + 1, size - 1);
  const int route = data[0] % 8, more = data[0] / 8;
  try {
    if (route == 4) {
      if (is_utf8(text) && read_calls(text, text.size()) != read_calls(text, size_t(1 + more))) std::abort();
    } else {
      read_route(route % 4, parse_body(text), more % 4 == 3 ? without_text : model, more / 4 % 2 ? lenient : strict);
    }
  } catch (const ApiError& e) {
    if (e.status < 400 || error_body(e).empty()) std::abort();
  } catch (const Error& e) {
    fuzz::check_message(e);
  }
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  static const std::vector<std::string_view> words = fuzz::words(
      R"(model messages role user system assistant tool content type text prompt tokens max_tokens max_completion_tokens temperature
top_p top_k min_p n best_of seed stop stream stream_options include_usage logprobs top_logprobs echo logit_bias presence_penalty
frequency_penalty repetition_penalty tools function name parameters tool_choice auto none required tool_calls tool_call_id
arguments id parallel_tool_calls response_format suffix user priority ignore_eos add_special_tokens chat_template_kwargs <s> ab
99 -1 chat_template image_url skip_special_tokens documents
<tool_call> </tool_call> [TOOL_CALLS] f)");
  fuzz::Random random(seed);
  if (size < 2) return LLVMFuzzerMutate(data, size, max_size);
  if (random.chance(16)) data[0] = uint8_t(random.next());
  std::string body = fuzz::mutate_json({reinterpret_cast<char*>(data) + 1, size - 1}, words, random, max_size - 1);
  return 1 + fuzz::write_back(body, data + 1, max_size - 1);
}
