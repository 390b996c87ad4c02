// Options that several commands share.
#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/json.h"
#include "engine/engine.h"

namespace mr {

struct EngineFlags {
  std::string model;                                         // path or short name; empty: the default model
  std::string device = "auto", isa, kv_dtype, memory, swap;  // kv_dtype empty: the device's
  EngineOptions options;
  std::string victim = "newest", batching = "continuous", state = "paged";
  std::optional<uint64_t> random_weights;
  CLI::Option *max_seqs = nullptr, *max_batch_tokens = nullptr;  // given, or the device's own
  bool deterministic = false, no_prefix_cache = false, no_kv_cache = false, no_overlap = false;
};
void add_engine_flags(CLI::App&, EngineFlags&);
void choose_device(EngineFlags&);                    // and what it runs at once, unless that is given
std::unique_ptr<Engine> start_engine(EngineFlags&);  // with a progress bar when stderr is a terminal

int64_t memory_bytes(const std::string&);  // "512M", "4G", "0.4" (of the machine's memory), "1000000"; 0: it is none of these

void run_alone(Engine&, Request, const Sink&);  // to its end; throws what went wrong

struct SamplingFlags {
  SamplingParams params;
  std::vector<std::string> logit_bias;  // ID=BIAS
  int n = 1;
  SamplingParams resolve() const;
};
void add_sampling_flags(CLI::App&, SamplingFlags&);

// The prompt of a command: text, token ids or a file.
struct PromptFlags {
  std::string text, file;
  std::vector<int32_t> tokens;
  bool given() const { return !text.empty() || !file.empty() || !tokens.empty(); }
};
void add_prompt_flags(CLI::App&, PromptFlags&);
std::string prompt_text(const PromptFlags&);                               // -p or --file
std::vector<int32_t> prompt_tokens(const PromptFlags&, const Tokenizer*);  // encoded with the model's special tokens

const Tokenizer& need_tokenizer(const Tokenizer*, const char* advice = "");  // throws: the model has none
std::string read_file(const std::string& path);                              // "-": standard input
void write_file(const std::filesystem::path&, const std::string& text);
void make_folder(const std::filesystem::path&);  // unless it is there

}  // namespace mr
