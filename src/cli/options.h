// Options shared by several commands.
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
  std::string model;                                                      // path or short name; empty: the default model
  std::string device = "auto", isa, kv_dtype, state_dtype, memory, swap;  // kv_dtype empty: the device's; state_dtype: the model's
  EngineOptions options;
  std::string victim = "newest", batching = "continuous", state = "paged";
  std::optional<uint64_t> random_weights;
  std::string quantize;
  CLI::Option *max_seqs = nullptr, *max_batch_tokens = nullptr;  // whether they were given
  bool requantize = false, deterministic = false, no_prefix_cache = false, no_kv_cache = false, no_overlap = false;
};
CLI::Option* add_kv_dtype(CLI::App&, std::string& name, const std::string& otherwise);
CLI::Option* add_state_dtype(CLI::App&, std::string& name);
void add_engine_flags(CLI::App&, EngineFlags&);
void settle(EngineFlags&);                           // its words become its options, with a progress bar when stderr is a terminal
std::unique_ptr<Engine> start_engine(EngineFlags&);  // settles them too

void run_alone(Engine&, Request, const Sink&);  // to its end; throws its error

struct SamplingFlags {
  SamplingParams params;
  std::vector<std::string> logit_bias;  // ID=BIAS
  int n = 1;
  const CLI::App* app = nullptr;  // to tell which flags were given
  bool given(const char* flag) const { return app && app->count(flag) > 0; }
  SamplingParams resolve(const GenerationDefaults& of_the_model = {}) const;  // by precedence: flags, the model's defaults, ours
};
void add_sampling_flags(CLI::App&, SamplingFlags&);
std::string speed_text(const Timing&);  // " at 87 tok/s", of the tokens after the first; empty: there were none

// Hides flags that have no effect in a command; using one is an error with the reason.
void refuse_flags(CLI::App&, std::initializer_list<const char*> flags, const std::string& reason);

// The prompt of a command: text, token ids, a file or piped input; text given with piped input follows it.
struct PromptFlags {
  std::string text, file;
  std::vector<int32_t> tokens;
};
void add_prompt_flags(CLI::App&, PromptFlags&);
std::string prompt_text(const PromptFlags&);                               // throws without a prompt
std::vector<int32_t> prompt_tokens(const PromptFlags&, const Tokenizer*);  // encoded with the model's special tokens

const Tokenizer& need_tokenizer(const Tokenizer*, const char* advice = "");  // throws if the model has none
std::string read_file(const std::string& path);                              // "-": standard input
std::string piped_input();                                                   // all of it, if standard input is a pipe or a file; else empty
std::string model_name(const EngineFlags&);                                  // a short name as given; else that of the file or directory
void write_file(const std::filesystem::path&, const std::string& text);
void make_folder(const std::filesystem::path&);  // unless it exists

}  // namespace mr
