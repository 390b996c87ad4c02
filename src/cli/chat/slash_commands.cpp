#include "cli/chat/slash_commands.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "cli/terminal/cells.h"
#include "cli/terminal/markdown_stream.h"
#include "cli/terminal/raw_terminal.h"
#include "core/error.h"
#include "core/words.h"
#include "text/unicode.h"

namespace mr {

namespace {

void say(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

std::string trimmed(std::string text) {
  text.erase(text.size() - trailing_space(text));
  return text.substr(leading_space(text));
}

// "a" and """a""" are a.
std::string unquoted(const std::string& text) {
  for (std::string_view mark : {"\"\"\"", "\""})
    if (text.size() >= 2 * mark.size() && text.starts_with(mark) && text.ends_with(mark))
      return text.substr(mark.size(), text.size() - 2 * mark.size());
  return text;
}

int help(ChatSession&, const std::string&);

int clear(ChatSession& s, const std::string&) {
  s.clear();
  say("The conversation is forgotten.\n");
  return 0;
}

int system(ChatSession& s, const std::string& argument) {
  if (argument.empty()) {
    say(s.conversation.system.empty() ? "There is no system prompt; /system TEXT sets one.\n" : harmless(s.conversation.system) + "\n");
    return 0;
  }
  s.conversation.system = unquoted(argument);
  say(s.conversation.system.empty() ? "The system prompt is gone.\n" : "The system prompt is set.\n");
  return 0;
}

int set(ChatSession& s, const std::string& argument) {
  std::string rest = argument.starts_with("parameter ") ? trimmed(argument.substr(10)) : argument;  // as in ollama
  if (rest.empty()) {
    say(settings_text(s.settings));
    return 0;
  }
  const size_t space = std::min(rest.find_first_of(" ="), rest.size());
  const std::string name = rest.substr(0, space), value = unquoted(trimmed(rest.substr(std::min(space + 1, rest.size()))));
  check(name != "system", "/system TEXT sets the system prompt");
  check(!value.empty(), "/set {} needs a value", name);
  change_setting(s.settings, name, value, s.vocab());
  say(fmt::format("{} is {} from now on.\n", printable(name), printable(value)));
  return 0;
}

int save(ChatSession& s, const std::string& argument) {
  check(!argument.empty(), "/save needs a file's name");
  save_conversation(s.conversation, s.model(), argument);
  say(fmt::format("{} saved in {}.\n", counted(int64_t(s.conversation.turns.size()), "turn"), printable(argument)));
  return 0;
}

int load(ChatSession& s, const std::string& argument) {
  check(!argument.empty(), "/load needs a file's name");
  s.conversation = load_conversation(argument);
  say(fmt::format("{} loaded from {}.\n", counted(int64_t(s.conversation.turns.size()), "turn"), printable(argument)));
  return 0;
}

int retry(ChatSession& s, const std::string&) { return s.retry(); }

int undo(ChatSession& s, const std::string&) {
  s.undo();
  say("The last question and its answer are taken back.\n");
  return 0;
}

int show(ChatSession& s, const std::string& argument) {
  if (argument == "reasoning") {
    check(!s.conversation.turns.empty() && !s.conversation.turns.back().reasoning.empty(), "the last answer came without reasoning");
    say(harmless(trimmed(s.conversation.turns.back().reasoning)) + "\n");
  } else {
    check(argument.empty(), "/show shows the model and the settings, /show reasoning what came before the last answer, not '{}'", argument);
    say(s.status());
  }
  return 0;
}

int model(ChatSession& s, const std::string& argument) {
  if (!argument.empty()) s.change_model(argument);
  say(s.banner() + "\n");
  return 0;
}

int bye(ChatSession& s, const std::string&) {
  s.over = true;
  return 0;
}

struct Command {
  std::string_view name, argument, help;
  int (*run)(ChatSession&, const std::string& argument);
};

constexpr Command kCommands[] = {
    {"/help", "", "this list", help},
    {"/clear", "", "forget the conversation", clear},
    {"/system", "[TEXT]", "set the system prompt, or show it; \"\" takes it away", system},
    {"/set", "[NAME VALUE]", "change temperature, max_tokens, think, … or list them", set},
    {"/save", "FILE", "write the conversation to a file", save},
    {"/load", "FILE", "go on with one that was saved", load},
    {"/retry", "", "answer the last question again", retry},
    {"/undo", "", "take back the last question and its answer", undo},
    {"/show", "[reasoning]", "the model, the settings, how full the context is", show},
    {"/model", "[MODEL]", "go on with another model, or name this one", model},
    {"/bye", "", "leave; so do Ctrl-D, and Ctrl-C twice", bye},
};

struct Alias {
  std::string_view word, command;
};
constexpr Alias kAliases[] = {{"/exit", "/bye"},  {"/quit", "/bye"},    {"/q", "/bye"},      {"/?", "/help"},
                              {"/new", "/clear"}, {"/reset", "/clear"}, {"/regen", "/retry"}};

int help(ChatSession&, const std::string&) {
  std::string out;
  for (const Command& c : kCommands) out += fmt::format("  {:<22}{}\n", fmt::format("{} {}", c.name, c.argument), c.help);
  out += "\n";
  for (const char* line :
       {"\"\"\" begins and ends a message of several lines; Alt-Enter or Ctrl-J begins a new line in one.",
        "Ctrl-C stops an answer or clears the line. Up and Down recall what was typed, Ctrl-R searches it, Tab completes "
        "commands.",
        "A message that begins with a slash goes to the model with a space before it."})
    out += "  " + wrap_words(line, terminal_size().columns, 2) + "\n";
  say(out);
  return 0;
}

}  // namespace

bool is_slash_command(const std::string& line) {
  if (line.size() < 2 || line[0] != '/' || line.find('\n') != std::string::npos) return false;
  const std::string word = line.substr(1, line.find(' ') - 1);
  return word == "?" || std::ranges::all_of(word, [](unsigned char c) { return std::isalpha(c) || c == '-' || c == '_'; });
}

int run_slash_command(const std::string& line, ChatSession& session) {
  std::string word = line.substr(0, line.find(' '));
  if (auto alias = std::ranges::find(kAliases, word, &Alias::word); alias != std::end(kAliases)) word = alias->command;
  auto found = std::ranges::find(kCommands, word, &Command::name);
  if (found == std::end(kCommands)) {
    std::vector<std::string_view> names;
    for (const Command& c : kCommands) names.push_back(c.name);
    const std::string_view near = nearest_word(word, names);
    fail("there is no command '{}': {} With a space before it, it goes to the model", word,
         near.empty() ? std::string("/help lists them.") : fmt::format("did you mean '{}'?", near));
  }
  const std::string argument = trimmed(line.substr(std::min(line.find(' '), line.size())));
  check(argument.empty() || !found->argument.empty(), "{} takes no argument, but '{}' was given", word, argument);
  return found->run(session, argument);
}

std::vector<std::string> slash_completions(const std::string& beginning) {
  std::vector<std::string> found;
  for (const Command& c : kCommands) {
    const std::string whole = std::string(c.name) + (c.argument.empty() ? "" : " ");
    if (whole.starts_with(beginning)) found.push_back(whole);
  }
  for (std::string_view name : setting_names())
    if (std::string whole = fmt::format("/set {} ", name); beginning.starts_with("/set ") && whole.starts_with(beginning))
      found.push_back(whole);
  return beginning.starts_with("/") ? found : std::vector<std::string>{};
}

}  // namespace mr
