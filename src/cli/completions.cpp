// `millrace completions SHELL` and `millrace man`: shell completions and the manual page, generated from the commands, so that
// neither can get out of date.
#include <fmt/format.h>

#include "cli/cli.h"

namespace mr {

namespace {

using Commands = std::vector<const CLI::App*>;

Commands commands_of(const CLI::App& program) {
  return program.get_subcommands([](const CLI::App*) { return true; });
}

std::vector<const CLI::Option*> flags_of(const CLI::App& command) {
  return command.get_options([](const CLI::Option* o) { return !o->get_lnames().empty() && !o->get_group().empty(); });
}

std::string join(const std::vector<std::string>& words) { return fmt::format("{}", fmt::join(words, " ")); }

std::string long_flags(const CLI::App& command) {
  std::vector<std::string> words;
  for (const CLI::Option* o : flags_of(command))
    for (const std::string& name : o->get_lnames()) words.push_back("--" + name);
  return join(words);
}

std::string names_of(const Commands& commands) {
  std::vector<std::string> names;
  for (const CLI::App* c : commands) names.push_back(c->get_name());
  return join(names);
}

// In single quotes for a shell.
std::string quoted(const std::string& text) {
  std::string out = "'";
  for (char c : text) out += c == '\'' ? "'\\''" : std::string(1, c);
  return out + "'";
}

std::string for_bash(const Commands& commands) {
  std::string cases;
  for (const CLI::App* c : commands) cases += fmt::format("    {}) flags=\"{}\" ;;\n", c->get_name(), long_flags(*c));
  return fmt::format(R"(_millrace() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} flags=
  case ${{COMP_WORDS[1]}} in
{}  esac
  if [ "$COMP_CWORD" = 1 ]; then
    COMPREPLY=($(compgen -W "{} --help --version" -- "$word"))
  elif [[ $word == -* ]]; then
    COMPREPLY=($(compgen -W "$flags" -- "$word"))
  else
    COMPREPLY=($(compgen -f -- "$word"))
  fi
}}
complete -o filenames -F _millrace millrace
)",
                     cases, names_of(commands));
}

std::string for_zsh(const Commands& commands) {
  std::string described, cases;
  for (const CLI::App* c : commands) {
    described += fmt::format("    {}\n", quoted(c->get_name() + ":" + c->get_description()));
    cases += fmt::format("    {}) flags=({}) ;;\n", c->get_name(), long_flags(*c));
  }
  return fmt::format(R"(#compdef millrace
_millrace() {{
  local -a commands flags
  commands=(
{}  )
  if (( CURRENT == 2 )); then
    _describe command commands
    return
  fi
  case ${{words[2]}} in
{}  esac
  if [[ ${{words[CURRENT]}} == -* ]]; then compadd -- $flags; else _files; fi
}}
if [ "$funcstack[1]" = _millrace ]; then _millrace "$@"; else compdef _millrace millrace; fi
)",
                     described, cases);
}

std::string for_fish(const Commands& commands) {
  std::string out = "complete -c millrace -n __fish_use_subcommand -l help -l version\n";
  for (const CLI::App* c : commands) {
    out += fmt::format("complete -c millrace -n __fish_use_subcommand -a {} -d {}\n", c->get_name(), quoted(c->get_description()));
    for (const CLI::Option* o : flags_of(*c))
      out += fmt::format("complete -c millrace -n '__fish_seen_subcommand_from {}' -l {} -d {}\n", c->get_name(), o->get_lnames().front(),
                         quoted(o->get_description()));
  }
  return out;
}

// Escaped for a manual page: copyable hyphens, no line that roff takes for a request.
std::string roff(const std::string& text) {
  std::string out;
  for (char c : text) {
    if ((c == '.' || c == '\'') && (out.empty() || out.back() == '\n')) out += "\\&";
    if (c == '-' || c == '\\') out += '\\';
    out += c == '\\' ? 'e' : c;
  }
  return out;
}

std::string man_page(const CLI::App& program) {
  std::string out =
      fmt::format(".TH MILLRACE 1 \"\" \"millrace {}\"\n.SH NAME\nmillrace \\- {}\n.SH SYNOPSIS\n.B millrace\n.I COMMAND\n[options]\n",
                  MR_VERSION, roff("language-model inference on this machine, and how far from its limit"));
  out += ".SH COMMANDS\n";
  for (const CLI::App* c : commands_of(program)) {
    out += fmt::format(".SS millrace {}\n{}.\n", roff(c->get_name()), roff(c->get_description()));
    for (const CLI::Option* o : c->get_options()) {
      if (o->get_group().empty()) continue;
      out += fmt::format(".TP\n.B {}\n{}\n", roff(o->get_name(false, true)), roff(o->get_description()));
    }
  }
  constexpr std::pair<const char*, const char*> variables[] = {
      {"MILLRACE_API_KEY", "the key that the server asks for"},
      {"XDG_CACHE_HOME", "where models and measurements of this machine are kept, in a folder millrace; ~/.cache if unset"},
      {"XDG_STATE_HOME", "where chat keeps what was typed, in millrace/history; ~/.local/state if unset"},
      {"HF_HOME, HF_HUB_CACHE", "the cache of pulled models, which Hugging Face's tools share; ~/.cache/huggingface if unset"},
      {"HF_TOKEN", "the key to gated and private models"},
      {"HF_ENDPOINT", "a mirror of the hub"},
      {"HF_HUB_OFFLINE", "1: the hub is never asked"},
      {"HTTPS_PROXY, NO_PROXY", "the way to the hub"},
      {"NO_COLOR", "set to anything: no colours in the terminal"},
  };
  out += ".SH ENVIRONMENT\n";
  for (const auto& [name, meaning] : variables) out += fmt::format(".TP\n.B {}\n{}\n", name, roff(meaning));
  return out + ".SH EXIT STATUS\n0 success, 1 an error, 2 an invalid command line.\n";
}

struct ShellFlags {
  std::string shell;
};

}  // namespace

void add_completions(CLI::App& program, Action& chosen) {
  const CLI::App* whole = &program;
  add_command<ShellFlags>(
      program, chosen, "completions", "a script for completion of commands and flags in a shell",
      [](CLI::App& app, ShellFlags& f) {
        app.add_option("SHELL", f.shell, "bash, zsh or fish")->required()->check(CLI::IsMember({"bash", "zsh", "fish"}));
      },
      [whole](const ShellFlags& f) {
        const Commands commands = commands_of(*whole);
        fmt::print("{}", f.shell == "bash" ? for_bash(commands) : f.shell == "zsh" ? for_zsh(commands) : for_fish(commands));
        return 0;
      });
  add_command<ShellFlags>(
      program, chosen, "man", "the manual page, for man", [](CLI::App&, ShellFlags&) {},
      [whole](const ShellFlags&) {
        fmt::print("{}", man_page(*whole));
        return 0;
      });
}

}  // namespace mr
