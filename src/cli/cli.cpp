#include "cli/cli.h"

#include <algorithm>
#include <cstdio>
#include <span>
#include <string>

#include "cli/about.h"
#include "core/error.h"

namespace mr {

// A list with an empty entry, as in "1,,3", which the parser would leave out without a word; empty: there is none.
static std::string gap_in_a_list(const CLI::App& command, std::span<char*> words) {
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

int run_command_line(int argc, char** argv) {
  CLI::App program{"millrace: language-model inference on this machine, and how far from its limit", "millrace"};
  program.set_version_flag("--version", [] { return version_line() + "\n" + build_line() + "\n" + machine_line(); });
  program.require_subcommand(1);
  program.get_formatter()->column_width(42);
  Action action;
  add_serve(program, action);
  add_generate(program, action);
  add_chat(program, action);
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
  auto commands = program.get_subcommands([](CLI::App*) { return true; });
  bool is_command = argc > 1 && std::ranges::any_of(commands, [&](CLI::App* c) { return c->get_name() == argv[1]; });
  if (argc > 1 && argv[1][0] != '-' && !is_command) {
    std::fprintf(stderr, "millrace: there is no command '%s'; millrace --help lists them\n", argv[1]);
    return 2;
  }
  try {
    program.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return program.exit(e) == 0 ? 0 : 2;
  }
  for (const CLI::App* command : program.get_subcommands())
    if (const std::string gap = gap_in_a_list(*command, std::span(argv, size_t(argc))); !gap.empty()) {
      std::fprintf(stderr, "millrace: %s: the list has an empty entry\n", gap.c_str());
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
