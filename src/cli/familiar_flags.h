// Flags that fingers know from llama.cpp, vLLM and ollama: those that mean the same under another name are taken for it, the others are
// refused with the word that is right here.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace mr {

// The words of a command line, after the program's name; flags that the command has itself stay as they are. Throws CLI::ParseError.
std::vector<std::string> with_own_flags(std::vector<std::string> words, const CLI::App& program);

}  // namespace mr
