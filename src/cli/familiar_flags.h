// Flags known from llama.cpp, vLLM and ollama: those with an equivalent here are translated, the others refused with the right
// alternative.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace mr {

// The words of a command line, after the program's name; flags of the command itself are kept. Throws CLI::ParseError.
std::vector<std::string> with_own_flags(std::vector<std::string> words, const CLI::App& program);

}  // namespace mr
