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

// A list with an empty entry, as in "1,,3", which the parser would leave out without a word; empty: there is none.
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
  return near.empty() ? "" : fmt::format(": is '{}' meant?", near);
}

static void check_command(const CLI::App& program, const std::vector<std::string>& words) {
  if (words.empty() || words[0].starts_with('-')) return;
  std::vector<std::string> names;
  for (const CLI::App* c : program.get_subcommands({})) names.push_back(c->get_name());
  if (std::ranges::find(names, words[0]) == names.end())
    throw CLI::ParseError(fmt::format("there is no command '{}'{}", words[0], meant(words[0], names)), 2);
}

// What is wrong with the command line, in a sentence that begins like the others and ends with where to look.
static std::string mistake(const CLI::ParseError& e, const CLI::App& program) {
  const auto chosen = program.get_subcommands();
  const std::string help = fmt::format("; millrace {}--help lists {}", chosen.empty() ? "" : chosen[0]->get_name() + " ",
                                       chosen.empty() ? "the commands" : "its flags");
  const auto left = program.remaining(true);
  if (dynamic_cast<const CLI::RequiredError*>(&e) && chosen.empty()) return "there is no command" + help;
  if (!dynamic_cast<const CLI::ExtrasError*>(&e) || left.empty()) {
    std::string text = e.what();
    text = text.substr(0, text.find('\n'));
    if (text.size() > 1 && std::islower(static_cast<unsigned char>(text[1])))
      text[0] = char(std::tolower(static_cast<unsigned char>(text[0])));
    return text + help;
  }
  const std::string word = left[0].substr(0, left[0].find('='));
  if (!word.starts_with('-')) return fmt::format("'{}' is a word too many{}", word, help);
  std::vector<std::string> flags;
  const CLI::App& command = chosen.empty() ? program : *chosen[0];
  for (const CLI::Option* o : command.get_options())
    for (const std::string& name : o->get_lnames()) flags.push_back("--" + name);
  return fmt::format("there is no flag '{}'{}{}", word, meant(word, flags), help);
}

int run_command_line(int argc, char** argv) {
  CLI::App program{"millrace: language-model inference on this machine, and how far from its limit", "millrace"};
  program.set_version_flag("--version", [] { return version_line() + "\n" + build_line() + "\n" + machine_line(); });
  program.require_subcommand(1);
  Action action;
  add_serve(program, action);
  add_generate(program, action);
  add_chat(program, action);
  add_run(program, action);
  add_score(program, action);
  add_tokenize(program, action);
  add_detokenize(program, action);
  add_inspect(program, action);
  add_bench(program, action);
  add_analyze(program, action);
  add_doctor(program, action);
  add_completions(program, action);
  add_pull(program, action);
  add_list(program, action);
  add_show(program, action);
  add_rm(program, action);
  add_ps(program, action);
  use_help(program);
  try {
    const std::vector<std::string> words = with_own_flags({argv + 1, argv + argc});
    check_command(program, words);
    program.parse(std::vector<std::string>(words.rbegin(), words.rend()));  // the parser takes them from the back
    for (const CLI::App* command : program.get_subcommands())
      if (const std::string gap = gap_in_a_list(*command, words); !gap.empty())
        throw CLI::ParseError(gap + ": the list has an empty entry", 2);
  } catch (const CLI::Success& e) {  // --help and its kin
    return program.exit(e);
  } catch (const CLI::ParseError& e) {
    std::fprintf(stderr, "millrace: %s\n", printable(mistake(e, program), 4000).c_str());
    return 2;
  }
  try {
    return action();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "millrace: %s\n", printable(e.what(), 4000).c_str());
    return 1;
  }
}

}  // namespace mr
