// millrace run: the word that ollama's users type. With a prompt, or with something piped in: one answer; at a terminal: a conversation.
#include <fmt/format.h>
#include <unistd.h>

#include "cli/chat/chat.h"
#include "cli/cli.h"
#include "cli/generate.h"

namespace mr {

namespace {

struct RunFlags {
  ChatFlags chat;
  std::vector<std::string> words;
};

int run(RunFlags& f) {
  if (f.words.empty() && isatty(STDIN_FILENO)) return chat(f.chat);
  GenerateFlags g{.engine = f.chat.engine, .sampling = f.chat.sampling, .system = f.chat.system, .template_file = f.chat.template_file};
  g.chat = g.plain_without_template = true;
  g.prompt.text = fmt::format("{}", fmt::join(f.words, " "));
  return generate(g);
}

}  // namespace

void add_run(CLI::App& program, Action& chosen) {
  add_command<RunFlags>(
      program, chosen, "run", "one answer to PROMPT or to what is piped in; without either a conversation",
      [](CLI::App& app, RunFlags& f) {
        add_chat_flags(app, f.chat);
        app.add_option("PROMPT", f.words, "what to ask; what is piped in comes before it");
      },
      run);
}

}  // namespace mr
