// millrace chat: a conversation in the terminal. Ctrl-C stops the answer, not the program; Ctrl-D or /exit leaves.
#include "engine/chat.h"

#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <iostream>

#include "cli/cli.h"
#include "cli/options.h"
#include "core/error.h"

namespace mr {

namespace {

struct ChatFlags {
  EngineFlags engine;
  SamplingFlags sampling;
  std::string system, template_file;
};

// The one thing that a signal handler may touch.
volatile std::sig_atomic_t interrupted = 0;
void on_interrupt(int) { interrupted = 1; }

void catch_interrupts() {
  struct sigaction action {};
  action.sa_handler = on_interrupt;  // no SA_RESTART: reading a line returns, so that Ctrl-C at the prompt clears it
  sigaction(SIGINT, &action, nullptr);
}

// Streams one answer; the text so far when it is stopped.
std::string answer(Engine& engine, std::vector<int32_t> prompt, const SamplingParams& sampling, Timing& timing) {
  std::string text, error;
  Request request{std::move(prompt), sampling};
  int64_t id = engine.submit(std::move(request), [&](const TokenEvent& event) {
    fmt::print("{}", event.text);
    std::fflush(stdout);
    text += event.text;
    if (event.finish != Finish::none) timing = event.timing;
    if (event.finish == Finish::error) error = event.error;
  });
  interrupted = 0;
  while (engine.step()) {
    if (!interrupted) continue;
    interrupted = 0;
    engine.cancel(id);
  }
  check(error.empty(), "{}", error);
  return text;
}

bool read_line(std::string& line, bool terminal) {
  for (;;) {
    if (terminal) {
      fmt::print("> ");
      std::fflush(stdout);
    }
    interrupted = 0;
    if (std::getline(std::cin, line)) return true;
    if (!interrupted || !terminal) return false;
    std::cin.clear();
    std::clearerr(stdin);
    fmt::print("\n");
  }
}

int chat(ChatFlags& f) {
  auto engine = start_engine(f.engine);
  ChatFormat format(need_tokenizer(engine->tokenizer()), f.template_file.empty() ? "" : read_file(f.template_file));
  f.sampling.resolve().validate(engine->model().spec().vocab);
  bool terminal = isatty(STDIN_FILENO);
  if (terminal) fmt::print("Ctrl-C stops an answer, /clear forgets the conversation, /exit or Ctrl-D leaves.\n");
  catch_interrupts();
  OrderedJson fresh = OrderedJson::array();
  if (!f.system.empty()) fresh.push_back({{"role", "system"}, {"content", f.system}});
  OrderedJson messages = fresh;
  for (std::string line; read_line(line, terminal);) {
    if (line == "/exit") break;
    if (line == "/clear") {
      messages = fresh;
      continue;
    }
    if (line.empty()) continue;
    messages.push_back({{"role", "user"}, {"content", line}});
    Timing timing;
    try {
      messages.push_back({{"role", "assistant"}, {"content", answer(*engine, format.encode(messages), f.sampling.resolve(), timing)}});
    } catch (const Error& e) {  // too long a conversation: say so, forget the last message, go on
      fmt::print(stderr, "millrace: {}\n", e.what());
      messages.erase(messages.size() - 1);
      continue;
    }
    fmt::print("\n");
    std::fflush(stdout);
    if (terminal)
      fmt::print(stderr, "[{} tokens at {:.0f} tok/s; {} of {} prompt tokens were in the cache]\n", timing.n_generated,
                 timing.decode_tokens_per_s(), timing.n_cached, timing.n_prompt);
  }
  if (terminal) fmt::print("\n");
  return 0;
}

}  // namespace

void add_chat(CLI::App& program, Action& chosen) {
  add_command<ChatFlags>(
      program, chosen, "chat", "a conversation in the terminal",
      [](CLI::App& app, ChatFlags& f) {
        f.sampling.params.temperature = 0.7f;
        f.sampling.params.max_tokens = 1024;
        add_engine_flags(app, f.engine);
        app.add_option("--system", f.system, "the system message");
        app.add_option("--chat-template", f.template_file, "a Jinja file instead of the model's own template");
        add_sampling_flags(app, f.sampling);
      },
      chat);
}

}  // namespace mr
