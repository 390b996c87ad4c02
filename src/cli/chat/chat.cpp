#include "cli/chat/chat.h"

#include <unistd.h>

#include <cstdio>
#include <iostream>

#include "cli/chat/session.h"
#include "cli/chat/slash_commands.h"
#include "cli/cli.h"
#include "cli/pull.h"
#include "cli/terminal/cells.h"
#include "cli/terminal/line_editor.h"
#include "core/config.h"
#include "core/error.h"
#include "text/unicode.h"

namespace mr {

namespace {

constexpr std::string_view kQuotes = "\"\"\"";  // around a message of several lines

// A message with open quotes continues in the next line.
bool is_complete(const std::string& text) {
  return !text.starts_with(kQuotes) || (text.size() >= 2 * kQuotes.size() && text.substr(kQuotes.size()).ends_with(kQuotes));
}

std::string message_of(std::string text) {
  text.erase(text.size() - trailing_space(text));
  if (!text.starts_with(kQuotes)) return text;
  text.erase(0, kQuotes.size());
  if (text.ends_with(kQuotes)) text.resize(text.size() - kQuotes.size());
  text.erase(text.size() - trailing_space(text));
  return text.substr(std::min(text.find_first_not_of('\n'), text.size()));
}

// Runs a command or asks the model; prints errors and returns false. `n_interrupts`: presses of Ctrl-C meanwhile.
bool take(ChatSession& session, const std::string& line, int& n_interrupts) {
  n_interrupts = 0;
  try {
    if (is_slash_command(line))
      n_interrupts = run_slash_command(line, session);
    else if (const std::string message = message_of(line); leading_space(message) < message.size())
      n_interrupts = session.ask(message);
    return true;
  } catch (const Error& e) {
    std::fflush(stdout);
    const std::string text = fmt::format("millrace: {}", e.what());
    fmt::print(stderr, "{}\n", session.on_terminal() ? wrap_words(text, terminal_size().columns) : text);
    std::fflush(stderr);
    return false;
  }
}

int chat_on_terminal(ChatSession& session, const ChatFlags& f) {
  fmt::print("{}\n/help lists the commands, Ctrl-C stops an answer, Ctrl-D leaves.\n\n", session.banner());
  std::fflush(stdout);
  RawTerminal terminal;
  session.use(&terminal);
  const std::filesystem::path folder = f.no_history ? "" : state_dir();
  History history(folder.empty() ? folder : folder / "history");
  LineEditor editor(terminal, history, {.is_complete = is_complete, .completions = slash_completions});
  int n_interrupts = 0;  // in a row: two leave
  for (std::string line; !session.over && n_interrupts < 2;) {
    const LineEditor::Outcome outcome = editor.read(line);
    if (outcome == LineEditor::Outcome::end) break;
    if (outcome == LineEditor::Outcome::interrupt) {
      if (++n_interrupts < 2) fmt::print("Ctrl-C again leaves, as /bye does.\n");
      continue;
    }
    history.add(line);
    take(session, line, n_interrupts);
    fmt::print("\n");
    std::fflush(stdout);
  }
  session.use(nullptr);
  return 0;
}

// One message a line; only answers go to standard output.
int chat_from_pipe(ChatSession& session) {
  bool all_well = true;
  int ignored = 0;
  for (std::string message, line; !session.over && std::getline(std::cin, line); message.clear()) {
    for (message = line; !is_complete(message) && std::getline(std::cin, line);) message += "\n" + line;
    all_well &= take(session, to_valid_utf8(message), ignored);
  }
  return all_well ? 0 : 1;
}

}  // namespace

int chat(ChatFlags& f) {
  pull_unless_here(f.engine.model);
  ChatSession session(f);
  const bool on_terminal = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO) && !terminal_is_dumb();
  return on_terminal ? chat_on_terminal(session, f) : chat_from_pipe(session);
}

void add_chat_flags(CLI::App& app, ChatFlags& f) {
  constexpr int whole_context = 1 << 30;
  f.sampling.params.temperature = 0.7f;
  f.sampling.params.max_tokens = whole_context;
  add_engine_flags(app, f.engine);
  app.add_option("--system", f.system, "the system message");
  app.add_option("--chat-template", f.template_file, "a Jinja file instead of the model's own template");
  app.add_flag("--no-history", f.no_history, "keep nothing of what is typed");
  add_sampling_flags(app, f.sampling);
  app.get_option("--max-tokens")->default_str("")->description("length of an answer; what the context holds if absent");
  refuse_flags(app, {"-n", "--logprobs"}, "a conversation has one answer at a time, as text");
  refuse_flags(app, {"--max-seqs", "--max-prompt-tokens", "--swap", "--victim", "--batching", "--batch-delay", "--state", "--no-overlap"},
               "a conversation is one sequence");
}

void add_chat(CLI::App& program, Action& chosen) {
  add_command<ChatFlags>(program, chosen, "chat", "a conversation in the terminal; piped in, one message a line", add_chat_flags, chat);
}

}  // namespace mr
