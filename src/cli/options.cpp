#include "cli/options.h"

#include <fmt/ranges.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <iostream>
#include <iterator>

#include "core/amounts.h"
#include "core/error.h"
#include "core/progress.h"
#include "hub/models.h"
#include "model/weight_formats.h"

namespace mr {

static std::string refuse_memory(const std::string& text) {
  return memory_bytes(text) ? "" : text + " is neither bytes (like 512M or 4G) nor a share (like 0.4)";
}

static std::string refuse_page(const std::string& text) {
  return std::atoi(text.c_str()) % 16 == 0 ? "" : "a page of " + text + " tokens is not a multiple of 16 tokens";
}

// The baselines of the techniques.
static void add_plain_forms(CLI::App& app, EngineFlags& f) {
  const char* group = "Engine, plain forms to compare with";
  app.add_option("--batching", f.batching,
                 "continuous; or one batch after the other, padded to its longest member: static (waits for --max-seqs "
                 "requests) or dynamic (waits at most --batch-delay)")
      ->check(CLI::IsMember({"continuous", "dynamic", "static"}))
      ->capture_default_str()
      ->group(group);
  app.add_option("--batch-delay", f.options.batch_delay_s, "seconds that --batching dynamic waits for a batch to fill")
      ->check(CLI::Range(0.0, 3600.0))
      ->capture_default_str()
      ->group(group);
  app.add_option("--state", f.state, "paged; or contiguous: reserves the longest context for every sequence, shares nothing")
      ->check(CLI::IsMember({"paged", "contiguous"}))
      ->capture_default_str()
      ->group(group);
  app.add_flag("--no-kv-cache", f.no_kv_cache, "recompute the whole context for every token")->group(group);
}

CLI::Option* add_kv_dtype(CLI::App& app, std::string& name, const std::string& otherwise) {
  std::vector<std::string> names;
  for (const KvFormat& format : kv_formats()) names.emplace_back(format.name);
  const std::string text = fmt::format("format of keys and values: {}; fp8 is fp8_e4m3; {}", fmt::join(names, ", "), otherwise);
  names.emplace_back("fp8");
  return app.add_option("--kv-dtype", name, text)->check(CLI::IsMember(names));
}

CLI::Option* add_state_dtype(CLI::App& app, std::string& name) {
  const char* text = "format of what recurrent layers carry from token to token: f32, bf16 or f16; what the model was made for by default";
  return app.add_option("--state-dtype", name, text)->check(CLI::IsMember({"f32", "bf16", "f16"}));
}

void add_engine_flags(CLI::App& app, EngineFlags& f) {
  const char* group = "Engine";
  app.add_option("MODEL,-m,--model", f.model,
                 "a Hugging Face directory, a .gguf file, OWNER/NAME or a unique part of it; the default model if omitted");
  app.add_option("--device", f.device, "auto (a GPU if there is a supported one), cuda, cpu, or ref (slow, scalar, obviously right)")
      ->check(CLI::IsMember({"auto", "cuda", "cpu", "ref"}))
      ->group(group);
  app.add_option("--isa", f.isa, "instruction set: scalar, avx2, avx512, vnni, amx; the best one by default")
      ->check(CLI::IsMember({"scalar", "avx2", "avx512", "vnni", "amx"}))
      ->group(group);
  app.add_option("--threads", f.options.threads, "worker threads; 0: one per core")->check(CLI::Range(0, 1024))->group(group);
  add_kv_dtype(app, f.kv_dtype, "f16 by default, on a GPU bf16")->group(group);
  add_state_dtype(app, f.state_dtype)->group(group);
  f.max_seqs = app.add_option("--max-seqs", f.options.max_seqs, "sequences running at once; 256 by default on a GPU")
                   ->check(CLI::Range(1, 4096))
                   ->capture_default_str()
                   ->group(group);
  f.max_batch_tokens = app.add_option("--max-batch-tokens", f.options.max_batch_tokens, "rows in one step; 8192 by default on a GPU")
                           ->check(CLI::Range(1, 65536))
                           ->capture_default_str()
                           ->group(group);
  app.add_option("--max-prompt-tokens", f.options.max_prompt_tokens,
                 "rows of prompts among them: fewer keep other answers flowing evenly; 0: no separate limit")
      ->check(CLI::Range(0, 65536))
      ->group(group);
  app.add_option("--max-context", f.options.max_context, "tokens in one sequence; 0: the model's maximum")
      ->check(CLI::Range(0, 1 << 30))
      ->group(group);
  app.add_option("--memory", f.memory, "memory for state: bytes (512M, 4G) or a share of the machine's memory (0.4)")
      ->check(refuse_memory)
      ->group(group);
  app.add_option("--swap", f.swap, "host memory for the state of preempted sequences (512M); without it their state is recomputed")
      ->check(refuse_memory)
      ->group(group);
  app.add_option("--victim", f.victim, "which sequence of the lowest priority is preempted when memory runs out: newest or largest")
      ->check(CLI::IsMember({"newest", "largest"}))
      ->capture_default_str()
      ->group(group);
  app.add_option("--page-tokens", f.options.page_tokens, "tokens in a page, a multiple of 16")
      ->check(CLI::Range(16, 4096))
      ->check(refuse_page)
      ->capture_default_str()
      ->group(group);
  app.add_flag("--no-prefix-cache", f.no_prefix_cache, "do not share the state of equal prefixes")->group(group);
  app.add_flag("--no-overlap", f.no_overlap, "plan a step only after the last one has ended")->group(group);
  app.add_flag("--deterministic", f.deterministic,
               "the same bits whatever else is in the batch, at the cost of speed; always so on a CPU, for free")
      ->group(group);
  app.add_option("--random-weights", f.random_weights, "random weights in the shapes of config.json, with this seed, to measure speed")
      ->group(group);
  app.add_option("--quantize", f.quantize,
                 "encode the weights in this format while they are loaded: q8_0, q4_0, q6_k, q5_k, q4_k, q4_k_m, mxfp4, ...; an unknown "
                 "name lists all")
      ->group(group);
  app.add_flag("--requantize", f.requantize, "let --quantize also encode weights that are quantized already")->group(group);
  add_plain_forms(app, f);
}

static std::function<void(int64_t, int64_t)> loading_bar() {
  return [shown = -1, line = std::make_shared<Progress>()](int64_t done, int64_t total) mutable {
    int percent = total ? int(done * 100 / total) : 100;
    if (percent == shown) return;
    shown = percent;
    line->show(percent == 100 ? "" : fmt::format("loading [{:<25}] {:3} %", std::string(size_t(percent / 4), '='), percent));
  };
}

// Sets its default batch limits too, unless given.
static void choose_device(EngineFlags& f) {
  const EngineOptions usual, fitting = options_for(f.device);
  EngineOptions& o = f.options;
  o.device = fitting.device;
  o.deterministic = f.deterministic;
  if (f.max_seqs && f.max_seqs->empty() && o.max_seqs >= usual.max_seqs) o.max_seqs = std::max(o.max_seqs, fitting.max_seqs);
  if (f.max_batch_tokens && f.max_batch_tokens->empty() && o.max_batch_tokens >= usual.max_batch_tokens)
    o.max_batch_tokens = std::max(o.max_batch_tokens, fitting.max_batch_tokens);
  f.max_seqs = f.max_batch_tokens = nullptr;
}

void settle(EngineFlags& f) {
  EngineOptions& o = f.options;
  choose_device(f);
  if (!f.isa.empty()) o.isa = isa_from(f.isa);
  if (!f.kv_dtype.empty()) o.kv_dtype = kv_format_named(f.kv_dtype).element;
  if (!f.state_dtype.empty()) o.state_dtype = dtype_from(f.state_dtype);
  if (!f.memory.empty()) o.state_bytes = memory_bytes(f.memory);
  if (!f.swap.empty()) o.swap_bytes = memory_bytes(f.swap);
  o.victim = f.victim == "largest" ? Victim::largest : Victim::newest;
  o.batching = f.batching == "static" ? Batching::fixed : f.batching == "dynamic" ? Batching::dynamic : Batching::continuous;
  o.contiguous = f.state == "contiguous";
  o.kv_cache = !f.no_kv_cache;
  o.overlap = !f.no_overlap;
  o.prefix_cache = !f.no_prefix_cache;
  o.random_weights = f.random_weights;
  check(!f.requantize || !f.quantize.empty(), "--requantize needs --quantize FORMAT");
  if (!f.quantize.empty()) WeightFormats::check_name(f.quantize);
  o.quantize = f.quantize;
  o.requantize = f.requantize;
  o.progress = [bar = loading_bar(), listener = o.progress](int64_t done, int64_t total) {
    bar(done, total);
    if (listener) listener(done, total);
  };
}

std::unique_ptr<Engine> start_engine(EngineFlags& f) {
  settle(f);
  auto engine = Engine::create(find_model(f.model), f.options);
  f.options.progress(1, 1);
  return engine;
}

void run_alone(Engine& engine, Request request, const Sink& sink) {
  std::string error;
  engine.submit(std::move(request), [&](const TokenEvent& event) {
    sink(event);
    if (event.finish == Finish::error) error = event.error;
  });
  while (engine.step()) {
  }
  check(error.empty(), "{}", error);
}

void add_sampling_flags(CLI::App& app, SamplingFlags& f) {
  const char* group = "Sampling";
  SamplingParams& p = f.params;
  f.app = &app;
  app.footer("Sampling defaults come from the model's generation_config.json, if it has one.");
  app.add_option("--temperature", p.temperature, "0 takes the likeliest token")->capture_default_str()->group(group);
  app.add_option("--top-k", p.top_k, "only the k likeliest tokens; 0: all")->group(group);
  app.add_option("--top-p", p.top_p, "only the likeliest tokens that together have this probability")->capture_default_str()->group(group);
  app.add_option("--min-p", p.min_p, "only tokens at least this likely, relative to the likeliest")->group(group);
  app.add_option("--repetition-penalty", p.repetition_penalty, "above 1: less repetition of tokens in prompt and answer")
      ->capture_default_str()
      ->group(group);
  app.add_option("--frequency-penalty", p.frequency_penalty, "subtracted for each occurrence of a token in the answer")->group(group);
  app.add_option("--presence-penalty", p.presence_penalty, "subtracted once if a token is in the answer")->group(group);
  app.add_option("--logit-bias", f.logit_bias, "ID=BIAS, may be repeated")->allow_extra_args(false)->group(group);
  app.add_option("--seed", p.seed, "same seed, same answer")->group(group);
  app.add_option("--max-tokens", p.max_tokens, "maximum length of the answer")->capture_default_str()->group(group);
  app.add_option("--stop", p.stop, "stop at this text; may be repeated")->allow_extra_args(false)->group(group);
  app.add_flag("--ignore-eos", p.ignore_eos, "do not stop at the model's end token")->group(group);
  app.add_option("--logprobs", p.logprobs, "report this many alternatives per token")->group(group);
  app.add_option("-n", f.n, "number of answers")
      ->check([](const std::string& text) {
        const int n = std::atoi(text.c_str());
        return n >= 1 && n <= 128 ? "" : text + " is not 1 to 128 answers; their length is --max-tokens";
      })
      ->capture_default_str()
      ->group(group);
}

SamplingParams SamplingFlags::resolve(const GenerationDefaults& of_the_model) const {
  SamplingParams p = of_the_model.over(params);
  if (given("--temperature")) p.temperature = params.temperature;
  if (given("--top-k")) p.top_k = params.top_k;
  if (given("--top-p")) p.top_p = params.top_p;
  if (given("--min-p")) p.min_p = params.min_p;
  if (given("--repetition-penalty")) p.repetition_penalty = params.repetition_penalty;
  for (const std::string& entry : logit_bias) {
    size_t used = 0, equals = entry.find('=');
    try {
      check(equals != std::string::npos, "no '='");
      int32_t id = std::stoi(entry.substr(0, equals), &used);
      check(used == equals, "no number");
      p.logit_bias[id] = std::stof(entry.substr(equals + 1), &used);
      check(used == entry.size() - equals - 1, "no number");
    } catch (const std::exception&) {
      fail("--logit-bias {} is not of the form ID=BIAS", entry);
    }
  }
  return p;
}

void add_prompt_flags(CLI::App& app, PromptFlags& f) {
  auto* text = app.add_option("-p,--prompt", f.text, "the prompt");
  auto* tokens = app.add_option("--tokens", f.tokens, "the prompt as token ids: 1,2,3")->delimiter(',')->allow_extra_args(false);
  auto* file = app.add_option("--file", f.file, "read the prompt from this file; -: standard input");
  text->excludes(tokens)->excludes(file);
  tokens->excludes(file);
}

std::string read_file(const std::string& path) {
  if (path == "-") return {std::istreambuf_iterator<char>(std::cin), {}};
  std::ifstream in(path, std::ios::binary);
  check(in.good() && !std::filesystem::is_directory(path), "cannot read {}: there is no such file", path);
  return {std::istreambuf_iterator<char>(in), {}};
}

// A terminal or /dev/null is not piped input.
std::string piped_input() {
  struct stat info {};
  const bool is_input = fstat(STDIN_FILENO, &info) == 0 && (S_ISFIFO(info.st_mode) || S_ISREG(info.st_mode) || S_ISSOCK(info.st_mode));
  if (!is_input) return "";
  constexpr int patience_ms = 3000;
  pollfd in{STDIN_FILENO, POLLIN, 0};
  if (poll(&in, 1, patience_ms) == 0)
    fmt::print(stderr, "millrace: waiting for standard input, which is a pipe (close it with </dev/null if nothing comes)\n");
  return read_file("-");
}

std::string prompt_text(const PromptFlags& f) {
  if (!f.file.empty()) return read_file(f.file);
  const std::string piped = piped_input();
  if (piped.empty() || f.text.empty()) {
    check(!piped.empty() || !f.text.empty(), "there is no prompt: give -p TEXT, --tokens IDS or --file FILE, or pipe it in");
    return piped + f.text;
  }
  return piped + (piped.ends_with('\n') ? "\n" : "\n\n") + f.text;
}

const Tokenizer& need_tokenizer(const Tokenizer* tokenizer, const char* advice) {
  check(tokenizer, "this model comes without a tokenizer{}", advice);
  return *tokenizer;
}

std::vector<int32_t> prompt_tokens(const PromptFlags& f, const Tokenizer* tokenizer) {
  if (!f.tokens.empty()) return f.tokens;
  return need_tokenizer(tokenizer, ": give the prompt as --tokens").encode(prompt_text(f), true);
}

std::string speed_text(const Timing& t) { return t.n_generated < 2 ? "" : fmt::format(" at {:.0f} tok/s", t.decode_tokens_per_s()); }

void refuse_flags(CLI::App& app, std::initializer_list<const char*> flags, const std::string& reason) {
  for (const char* flag : flags)
    app.get_option(flag)->group("")->check(
        [flag, reason](const std::string&) { return fmt::format("{} has no effect: {}", flag, reason); });
}

std::string model_name(const EngineFlags& f) {
  if (!f.model.empty() && !std::filesystem::exists(f.model)) return f.model;
  std::string name = model_name_at(find_model(f.model));
  if (const std::string_view ending = ".Q4_1"; f.model.empty() && name.ends_with(ending)) name.resize(name.size() - ending.size());
  return name;
}

void write_file(const std::filesystem::path& path, const std::string& text) {
  std::ofstream out(path);
  out << text;
  out.close();
  check(out.good(), "cannot write {}", path.string());
}

void make_folder(const std::filesystem::path& path) {
  std::error_code failed;
  std::filesystem::create_directories(path, failed);
  check(!failed, "cannot make the folder {}: {}", path.string(), failed.message());
}

}  // namespace mr
