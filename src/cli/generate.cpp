#include "cli/generate.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>

#include "cli/cli.h"
#include "cli/terminal/markdown_stream.h"
#include "core/error.h"
#include "core/words.h"
#include "engine/chat.h"

namespace mr {

namespace {

struct Answer {
  std::vector<int32_t> tokens;
  std::vector<Sampled> sampled;
  std::string text;
  Finish finish = Finish::none;
  Timing timing;
};

std::vector<int32_t> encode(const GenerateFlags& f, const Engine& engine) {
  const Tokenizer* tokenizer = engine.tokenizer();
  const bool plain = f.plain_without_template && f.template_file.empty() && tokenizer && tokenizer->chat_template().empty();
  if (!f.chat || plain) return prompt_tokens(f.prompt, tokenizer);
  check(f.prompt.tokens.empty(), "--chat needs the prompt as text: -p TEXT or --file FILE");
  ChatFormat format(need_tokenizer(tokenizer, ": `millrace generate --tokens 1,2,3` takes token ids"),
                    f.template_file.empty() ? "" : read_file(f.template_file));
  OrderedJson messages = OrderedJson::array();
  if (!f.system.empty()) messages.push_back({{"role", "system"}, {"content", f.system}});
  messages.push_back({{"role", "user"}, {"content", prompt_text(f.prompt)}});
  return format.encode(messages);
}

Json answer_json(const Answer& a, int n_alternatives) {
  Json j{{"tokens", a.tokens}, {"text", a.text}, {"logprobs", Json::array()}, {"finish_reason", name_of(a.finish)}};
  for (const Sampled& s : a.sampled) j["logprobs"].push_back(s.logprob);
  if (n_alternatives == 0) return j;
  for (const Sampled& s : a.sampled) {
    Json row = Json::array();
    for (const TopToken& t : s.top) row.push_back({{"token", t.token}, {"logprob", t.logprob}});
    j["top_logprobs"].push_back(row);
  }
  return j;
}

void print_logprobs(const Answer& a, const Tokenizer* tokenizer) {
  for (size_t i = 0; i < a.tokens.size(); i++) {
    auto piece = [&](int32_t id) {
      return tokenizer ? printable(Json(tokenizer->piece(id)).dump(-1, ' ', false, Json::error_handler_t::replace)) : std::to_string(id);
    };
    fmt::print("{:>9.4f}  {:<16}", a.sampled[i].logprob, piece(a.tokens[i]));
    for (const TopToken& t : a.sampled[i].top) fmt::print("  {} {:.4f}", piece(t.token), t.logprob);
    fmt::print("\n");
  }
}

void print_speed(const Answer& a) {
  const Timing& t = a.timing;
  note("[{} at {:.0f} tok/s, first token after {:.0f} ms; {}{}{}]\n", counted(t.n_prompt, "prompt token"),
             t.prefill_tokens_per_s(), t.ttft_s() * 1e3, counted(t.n_generated, "token"), speed_text(t),
             a.finish == Finish::length ? "; cut there (--max-tokens, or the context is full)" : "");
}

}  // namespace

int generate(GenerateFlags& f) {
  f.engine.options.max_seqs = std::max(f.engine.options.max_seqs, f.sampling.n);
  auto engine = start_engine(f.engine);
  Request request{encode(f, *engine), f.sampling.resolve(engine->generation_defaults()), f.sampling.n};
  const std::vector<int32_t> prompt = request.prompt;
  if (int room = engine->room_after(prompt.size()); room > 0 && !f.sampling.given("--max-tokens"))
    request.sampling.max_tokens = std::min(request.sampling.max_tokens, room);
  const bool to_terminal = isatty(STDOUT_FILENO);
  auto shown = [to_terminal](const std::string& text) { return to_terminal ? harmless(text) : text; };
  const int n_alternatives = request.sampling.logprobs;
  std::vector<Answer> answers(size_t(f.sampling.n));
  bool streaming = !f.json && f.sampling.n == 1;
  run_alone(*engine, std::move(request), [&](const TokenEvent& event) {
    Answer& a = answers[size_t(event.choice)];
    a.tokens.insert(a.tokens.end(), event.tokens.begin(), event.tokens.end());
    a.sampled.insert(a.sampled.end(), event.sampled.begin(), event.sampled.end());
    a.text += event.text;
    if (streaming) {
      fmt::print("{}", shown(event.text));
      std::fflush(stdout);
    }
    if (event.finish == Finish::none) return;
    a.finish = event.finish;
    a.timing = event.timing;
  });

  const Timing& timing = answers[0].timing;
  if (f.json) {
    Json out{{"model", engine->checkpoint().path().string()}, {"prompt_tokens", prompt}, {"choices", Json::array()}};
    for (const Answer& a : answers) out["choices"].push_back(answer_json(a, n_alternatives));
    out["timing"] = {{"ttft_s", timing.ttft_s()},
                     {"prefill_tokens_per_s", timing.prefill_tokens_per_s()},
                     {"decode_tokens_per_s", timing.decode_tokens_per_s()}};
    fmt::print("{}\n", out.dump(-1, ' ', false, Json::error_handler_t::replace));
    return 0;
  }
  for (size_t i = 0; i < answers.size(); i++) {
    if (!streaming) fmt::print("{}[{}] {}", i ? "\n" : "", i, shown(answers[i].text));
    if (!engine->tokenizer()) fmt::print("{}", fmt::join(answers[i].tokens, ","));
    fmt::print("\n");
    if (n_alternatives) print_logprobs(answers[i], engine->tokenizer());
  }
  std::fflush(stdout);
  print_speed(answers[0]);
  return 0;
}

void add_generate(CLI::App& program, Action& chosen) {
  add_command<GenerateFlags>(
      program, chosen, "generate", "one prompt, one or more answers; piped input comes before the prompt",
      [](CLI::App& app, GenerateFlags& f) {
        add_engine_flags(app, f.engine);
        add_prompt_flags(app, f.prompt);
        auto* chat = app.add_flag("--chat", f.chat, "treat the prompt as a user's message in the model's chat template");
        app.add_option("--system", f.system, "with --chat: the system message")->needs(chat);
        app.add_option("--chat-template", f.template_file, "with --chat: a Jinja file instead of the model's own template")->needs(chat);
        app.add_flag("--json", f.json, "one JSON object");
        add_sampling_flags(app, f.sampling);
      },
      generate);
}

}  // namespace mr
