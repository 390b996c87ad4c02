// --help: the important flags; --help-all: all. Wrapped to the terminal.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace mr {

class Help : public CLI::Formatter {
 public:
  std::string make_help(const CLI::App*, std::string name, CLI::AppFormatMode) const override;
  std::string make_option(const CLI::Option*, bool is_positional) const override;
  std::string make_subcommand(const CLI::App*) const override;
  std::string make_description(const CLI::App*) const override;
  std::string make_footer(const CLI::App*) const override;

 private:
  std::string flags(const CLI::App*, bool all) const;
};

void use_help(CLI::App& program);  // with all commands added so far

}  // namespace mr
