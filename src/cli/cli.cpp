#include "cli/cli.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <span>
#include <string>

#include "cli/about.h"
#include "cli/familiar_flags.h"
#include "cli/help.h"
#include "core/error.h"
#include "core/words.h"

namespace mr {

// A list with an empty entry, as in "1,,3", which the parser would drop silently; empty: none.
static std::string gap_in_a_list(const CLI::App& command, std::span<const std::string> words) {
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_delimiter() != ',' || !option->count()) continue;
    const std::string name = option->get_name();
    for (size_t i = 0; i < words.size(); i++) {
      std::string word = words[i];
      if (word.starts_with(name + "="))
        word.erase(0, name.size() + 1);
      else if (word == name && i + 1 < words.size())
        word = words[i + 1];
      else
        continue;
      if (word.empty() || word.starts_with(',') || word.ends_with(',') || word.find(",,") != word.npos)
        return name + (word.empty() ? " \"\"" : " " + word);
    }
  }
  return "";
}

static std::string meant(std::string_view word, const std::vector<std::string>& known) {
  const std::vector<std::string_view> names(known.begin(), known.end());
  const std::string_view near = nearest_word(word, names);
  return near.empty() ? "" : fmt::format(": did you mean '{}'?", near);
}

static void check_command(const CLI::App& program, const std::vector<std::string>& words) {
  if (words.empty() || words[0].starts_with('-')) return;
  std::vector<std::string> names;
  for (const CLI::App* c : program.get_subcommands({})) names.push_back(c->get_name());
  if (std::ranges::find(names, words[0]) == names.end())
    throw CLI::ParseError(fmt::format("there is no command '{}'{}", words[0], meant(words[0], names)), 2);
}

// A parse error as a message in our style that ends with where to look. `command`: null if none was given yet.
static std::string mistake(const CLI::ParseError& e, const CLI::App& program, const CLI::App* command) {
  const std::string help =
      fmt::format("millrace {}--help lists {}", command ? command->get_name() + " " : "", command ? "its flags" : "the commands");
  auto with_help = [&](const std::string& text) { return text + (text.ends_with('?') ? " " : "; ") + help; };
  const auto left = program.remaining(true);
  if (dynamic_cast<const CLI::RequiredError*>(&e) && !command) return with_help("there is no command");
  if (!dynamic_cast<const CLI::ExtrasError*>(&e) || left.empty()) {
    std::string text = e.what();
    text = text.substr(0, text.find('\n'));
    if (text.starts_with(": ")) text.erase(0, 2);  // for hidden flags the parser gives no name
    if (text.size() > 1 && std::islower(static_cast<unsigned char>(text[1])))
      text[0] = char(std::tolower(static_cast<unsigned char>(text[0])));
    return with_help(text);
  }
  const std::string word = left[0].substr(0, left[0].find('='));
  if (!word.starts_with('-')) return with_help(fmt::format("unexpected argument '{}'", word));
  std::vector<std::string> flags;
  for (const CLI::Option* o : (command ? command : &program)->get_options())
    for (const std::string& name : o->get_lnames()) flags.push_back("--" + name);
  return with_help(fmt::format("there is no flag '{}'{}", word, meant(word, flags)));
}

static void add_commands(CLI::App& program, Action& action) {
  for (auto add : {add_run, add_chat, add_generate, add_serve, add_pull, add_list, add_show, add_rm, add_ps, add_score, add_tokenize,
                   add_detokenize, add_inspect, add_convert, add_bench, add_analyze, add_doctor, add_completions})
    add(program, action);
}

int run_command_line(int argc, char** argv) {
  CLI::App program{"millrace: language-model inference on this machine, and how far from its limit", "millrace"};
  program.set_help_flag("-h,--help", "this list; COMMAND --help explains a command");
  program.set_version_flag(
      "--version", [] { return version_line() + "\n" + build_line() + "\n" + machine_line(); },
      "how it was built, and what the machine offers");
  program.require_subcommand(1);
  Action action;
  add_commands(program, action);
  use_help(program);
  const std::vector<std::string> typed(argv + 1, argv + argc);
  if (typed.empty()) {
    std::fputs(program.help().c_str(), stderr);
    return 2;
  }
  try {
    check_command(program, typed);
    const std::vector<std::string> words = with_own_flags(typed, program);
    program.parse(std::vector<std::string>(words.rbegin(), words.rend()));  // the parser expects reverse order
    for (const CLI::App* command : program.get_subcommands())
      if (const std::string gap = gap_in_a_list(*command, words); !gap.empty())
        throw CLI::ParseError(gap + ": the list has an empty entry", 2);
  } catch (const CLI::Success& e) {  // --help, --version
    return program.exit(e);
  } catch (const CLI::ParseError& e) {
    const auto commands = program.get_subcommands([&](const CLI::App* c) { return c->get_name() == typed[0]; });
    std::fprintf(stderr, "millrace: %s\n", printable(mistake(e, program, commands.empty() ? nullptr : commands[0]), 4000).c_str());
    return 2;
  }
  try {
    const int status = action();
    check(std::fflush(stdout) == 0 && !std::ferror(stdout), "not all of the output could be written: is the disk full?");
    return status;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "millrace: %s\n", printable(e.what(), 4000).c_str());
    return 1;
  }
}

}  // namespace mr
