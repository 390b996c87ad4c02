#include "cli/familiar_flags.h"

#include <fmt/format.h>

#include <algorithm>

namespace mr {

namespace {

struct Familiar {
  std::string_view word, ours;  // ours empty: no equivalent
  std::string_view advice = "";
};

constexpr std::string_view kWhole = "a model runs whole on one device: --device cuda puts it on the GPU",
                           kAlways = "this is always so: leave it out", kChat = "'millrace chat' is the conversation",
                           kRun = "'millrace run MODEL PROMPT' asks one question (and --port is a server's)",
                           kLength = "-n is how many answers 'generate' gives; --max-tokens is the length of one";

constexpr Familiar kFlags[] = {
    {"--temp", "--temperature"},
    {"-c", "--max-context"},
    {"--ctx-size", "--max-context"},
    {"--n-ctx", "--max-context"},
    {"--num-ctx", "--max-context"},
    {"--context-length", "--max-context"},
    {"--max-model-len", "--max-context"},
    {"-t", "--threads"},
    {"--n-threads", "--threads"},
    {"-s", "--seed"},
    {"-f", "--file"},
    {"--n-predict", "--max-tokens"},
    {"--num-predict", "--max-tokens"},
    {"--predict", "--max-tokens"},
    {"--max-new-tokens", "--max-tokens"},
    {"--max-completion-tokens", "--max-tokens"},
    {"--repeat-penalty", "--repetition-penalty"},
    {"-sys", "--system"},
    {"--system-prompt", "--system"},
    {"--chat-template-file", "--chat-template"},
    {"-np", "--max-seqs"},
    {"--parallel", "--max-seqs"},
    {"--max-num-seqs", "--max-seqs"},
    {"--max-num-batched-tokens", "--max-batch-tokens"},
    {"-a", "--alias"},
    {"-ngl", "", kWhole},
    {"--n-gpu-layers", "", kWhole},
    {"--gpu-layers", "", kWhole},
    {"--num-gpu", "", kWhole},
    {"-tp", "", "a model runs on one GPU"},
    {"--tensor-parallel-size", "", "a model runs on one GPU"},
    {"--gpu-memory-utilization", "", "--memory takes bytes or a share, for the state alone"},
    {"-ctk", "", "--kv-dtype is for keys and values both: f16, bf16, f32, fp8_e4m3, fp8_e5m2, int8 or int4"},
    {"-ctv", "", "--kv-dtype is for keys and values both: f16, bf16, f32, fp8_e4m3, fp8_e5m2, int8 or int4"},
    {"--cache-type-k", "", "--kv-dtype is for keys and values both: f16, bf16, f32, fp8_e4m3, fp8_e5m2, int8 or int4"},
    {"--cache-type-v", "", "--kv-dtype is for keys and values both: f16, bf16, f32, fp8_e4m3, fp8_e5m2, int8 or int4"},
    {"--kv-cache-dtype", "--kv-dtype"},
    {"--mamba-ssm-cache-dtype", "--state-dtype"},
    {"-fa", "", kAlways},
    {"--flash-attn", "", kAlways},
    {"--stream", "", kAlways},
    {"--enable-prefix-caching", "", kAlways},
    {"--enable-chunked-prefill", "", kAlways},
    {"--mmap", "", kAlways},
    {"--no-mmap", "", "files are mapped, and their pages given back once the weights are packed"},
    {"--mlock", "", "files are mapped, and their pages given back once the weights are packed"},
    {"-i", "", kChat},
    {"--interactive", "", kChat},
    {"-cnv", "", kChat},
    {"--conversation", "", kChat},
    {"-hf", "--model"},
    {"--hf-repo", "--model"},
    {"-p", "", kRun},
    {"--prompt", "", kRun},
    {"--dtype", "", "weights run in the format that they are stored in"},
    {"--ubatch-size", "", "--max-batch-tokens is the number of rows in one step"},
    {"-ub", "", "--max-batch-tokens is the number of rows in one step"},
    {"--batch-size", "", "--max-batch-tokens is the number of rows in one step"},
};

// Flags whose value may look like a flag.
constexpr std::string_view kTakesText[] = {"-p", "--prompt", "--system", "--stop", "--file", "-m", "--model"};

// --top_k is --top-k.
std::string with_hyphens(std::string flag) {
  if (flag.starts_with("--")) std::ranges::replace(flag, '_', '-');
  return flag;
}

}  // namespace

std::vector<std::string> with_own_flags(std::vector<std::string> words, const CLI::App& program) {
  const auto commands = program.get_subcommands([&](const CLI::App* c) { return !words.empty() && c->get_name() == words[0]; });
  auto has = [&](const std::string& flag) { return commands[0]->get_option_no_throw(flag) != nullptr; };
  if (commands.empty() || !has("--model")) return words;  // the command runs no model
  for (size_t i = 1; i < words.size(); i++) {
    std::string& word = words[i];
    if (word == "--") break;
    if (word.size() < 2 || word[0] != '-') continue;
    const size_t equals = std::min(word.find('='), word.size());
    std::string flag = with_hyphens(word.substr(0, equals));
    if (flag == "-n" && (words[0] == "chat" || words[0] == "run")) throw CLI::ParseError(fmt::format("{}: {}", flag, kLength), 2);
    if (const Familiar* f = std::ranges::find(kFlags, flag, &Familiar::word); f != std::end(kFlags) && !has(flag)) {
      if (f->ours.empty()) throw CLI::ParseError(fmt::format("there is no flag {} here: {}", flag, f->advice), 2);
      if (has(std::string(f->ours))) flag = f->ours;
    }
    const bool has_value = equals < word.size();
    word = flag + word.substr(equals);
    if (std::ranges::find(kTakesText, flag) != std::end(kTakesText) && !has_value) i++;
  }
  return words;
}

}  // namespace mr
