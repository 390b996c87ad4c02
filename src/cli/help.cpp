#include "cli/help.h"

#include <algorithm>
#include <map>
#include <sstream>

#include "cli/terminal/cells.h"
#include "cli/terminal/raw_terminal.h"

namespace mr {

namespace {

constexpr int kMargin = 26;  // column of the descriptions

// The flags that --help shows of commands with too many for a screen.
const std::map<std::string, std::vector<std::string>, std::less<>> kMatter = {
    {"generate", {"--prompt", "--file", "--chat", "--system", "--temperature", "--top-p", "--max-tokens", "--seed", "-n", "--json"}},
    {"chat",
     {"--system", "--temperature", "--top-k", "--top-p", "--max-tokens", "--seed", "--max-context", "--device", "--threads", "--memory"}},
    {"run",
     {"--system", "--temperature", "--top-k", "--top-p", "--max-tokens", "--seed", "--max-context", "--device", "--threads", "--memory"}},
    {"score", {"--prompt", "--file", "--tokens", "--stride", "--summary", "--logits", "--json", "--device", "--threads", "--max-context"}},
    {"bench",
     {"--batch", "--context", "--decode", "--explain", "--techniques", "--json", "--device", "--threads", "--load", "--url"}},
    {"serve",
     {"--host", "--port", "--api-key", "--served-model-name", "--device", "--threads", "--max-seqs", "--max-context", "--memory",
      "--log-level"}},
};

bool matters(const CLI::App* app, const CLI::Option* option) {
  auto list = kMatter.find(app->get_name());
  if (list == kMatter.end() || option == app->get_help_ptr() || option == app->get_help_all_ptr()) return true;
  return std::ranges::any_of(list->second, [&](const std::string& name) { return option->check_name(name); });
}

int columns() { return std::min(terminal_size().columns, 110); }

std::string row(const std::string& name, const std::string& explanation) {
  std::string out = "  " + name;
  const int cells = cells_of(out);
  out += cells + 2 > kMargin ? "\n" + std::string(kMargin, ' ') : std::string(size_t(kMargin - cells), ' ');
  return out + wrap_words(explanation, columns(), kMargin) + "\n";
}

// Without the names of checks, "TEXT:{a,b}" and "INT:INT in [0 - 9]": the description says it better.
std::string type_of(const CLI::Option* option) {
  if (option->get_type_size() == 0) return "";
  const std::string type = option->get_type_name();
  return " " + type.substr(0, type.find(':'));
}

}  // namespace

std::string Help::make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const {
  std::string out = make_description(app) + make_usage(app, name) + make_positionals(app) + flags(app, mode != CLI::AppFormatMode::Normal);
  out += make_subcommands(app, CLI::AppFormatMode::Normal);
  const std::string footer = make_footer(app);
  return footer.empty() ? out : out + "\n" + footer;
}

std::string Help::flags(const CLI::App* app, bool all) const {
  auto in = [&](const std::string& group) {
    return app->get_options([&](const CLI::Option* o) { return o->get_group() == group && o->nonpositional(); });
  };
  const std::vector<std::string> groups = app->get_groups();
  const bool has_more = std::ranges::any_of(groups, [&](const std::string& group) {
    return !group.empty() && std::ranges::any_of(in(group), [&](const CLI::Option* o) { return !matters(app, o); });
  });
  std::string out;
  for (const std::string& group : groups) {
    if (group.empty()) continue;
    auto shown = in(group);
    std::erase_if(shown, [&](const CLI::Option* o) { return o == app->get_help_all_ptr() ? !has_more : !all && !matters(app, o); });
    if (!shown.empty()) out += make_group(group, false, shown);
  }
  if (has_more && !all) out += "\n--help-all lists the other flags too.\n";
  return out;
}

std::string Help::make_option(const CLI::Option* option, bool is_positional) const {
  if (is_positional) return row(make_option_name(option, true), option->get_description());
  std::string text = option->get_description();
  if (!option->get_default_str().empty()) text += " (" + option->get_default_str() + ")";
  return row(make_option_name(option, false) + type_of(option), text);
}

std::string Help::make_subcommand(const CLI::App* command) const { return row(command->get_name(), command->get_description()); }
std::string Help::make_description(const CLI::App* app) const { return wrap_words(app->get_description(), columns()) + "\n"; }

std::string Help::make_footer(const CLI::App* app) const {
  std::string out;
  std::istringstream lines(app->get_footer());
  for (std::string line; std::getline(lines, line);) out += wrap_words(line, columns()) + "\n";
  return out;
}

void use_help(CLI::App& program) {
  auto help = std::make_shared<Help>();
  help->label("SUBCOMMAND", "COMMAND");
  help->label("Positionals", "Arguments");
  program.formatter(help);
  for (CLI::App* command : program.get_subcommands([](CLI::App*) { return true; })) {
    command->formatter(help);
    command->group("Commands");
    command->set_help_flag("-h,--help", "this list");
    command->set_help_all_flag("--help-all", "with every flag");
  }
}

}  // namespace mr
