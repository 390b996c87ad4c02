// The command line: one file per command, each of which registers itself.
#pragma once

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <functional>
#include <string>

namespace mr {

// A word beside the output. That it cannot be written does not fail the command.
template <class... Args>
void note(fmt::format_string<Args...> text, Args&&... args) {
  std::fputs(fmt::format(text, std::forward<Args>(args)...).c_str(), stderr);
}

// Parses and runs one command. Exit status: 0 success, 2 an invalid command line, 1 any other error.
int run_command_line(int argc, char** argv);

// The command to run after parsing; returns the exit status.
using Action = std::function<int()>;

// Adds a subcommand whose options live in a fresh State: setup(command, state) declares them, act(state) runs.
template <class State, class Setup, class Act>
void add_command(CLI::App& program, Action& chosen, const char* name, const char* help, Setup setup, Act act) {
  CLI::App* command = program.add_subcommand(name, help);
  auto state = std::make_shared<State>();
  setup(*command, *state);
  command->callback([&chosen, state, act] { chosen = [state, act] { return act(*state); }; });
}

void add_generate(CLI::App&, Action&);
void add_chat(CLI::App&, Action&);
void add_run(CLI::App&, Action&);
void add_score(CLI::App&, Action&);
void add_tokenize(CLI::App&, Action&);
void add_detokenize(CLI::App&, Action&);
void add_inspect(CLI::App&, Action&);
void add_bench(CLI::App&, Action&);
void add_analyze(CLI::App&, Action&);
void add_serve(CLI::App&, Action&);
void add_doctor(CLI::App&, Action&);
void add_completions(CLI::App&, Action&);  // and the manual page
void add_pull(CLI::App&, Action&);
void add_list(CLI::App&, Action&);
void add_show(CLI::App&, Action&);
void add_rm(CLI::App&, Action&);
void add_convert(CLI::App&, Action&);
void add_ps(CLI::App&, Action&);

}  // namespace mr
