// millrace run: as in ollama. With a prompt or piped input: one answer; on a terminal: a conversation. A hub's model that is not on this
// machine is pulled first.
#include <fmt/format.h>
#include <unistd.h>

#include "cli/chat/chat.h"
#include "cli/cli.h"
#include "cli/generate.h"
#include "cli/pull.h"

namespace mr {

namespace {

struct RunFlags {
  ChatFlags chat;
  std::vector<std::string> words;
  std::string prompt;
};

int run_model(RunFlags& f) {
  const std::string prompt = f.words.empty() ? f.prompt : fmt::format("{}", fmt::join(f.words, " "));
  if (prompt.empty() && isatty(STDIN_FILENO)) return chat(f.chat);
  pull_unless_here(f.chat.engine.model);
  GenerateFlags g;
  g.engine = f.chat.engine;
  g.sampling = f.chat.sampling;
  g.system = f.chat.system;
  g.template_file = f.chat.template_file;
  g.chat = g.plain_without_template = true;
  g.prompt.text = prompt;
  return generate(g);
}

}  // namespace

void add_run(CLI::App& program, Action& chosen) {
  add_command<RunFlags>(
      program, chosen, "run", "answer PROMPT or piped input; without either, a conversation; pulls OWNER/NAME if necessary",
      [](CLI::App& app, RunFlags& f) {
        add_chat_flags(app, f.chat);
        auto* words = app.add_option("PROMPT", f.words, "the question; piped input comes before it");
        app.add_option("-p,--prompt", f.prompt, "the same, as a flag")->excludes(words);
      },
      run_model);
}

}  // namespace mr
