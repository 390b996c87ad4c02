// What must not change when the inside is rebuilt, a line each, equal from run to run:
//   hash DEVICE MODEL CASE HASH    of all logits of scored prompts, and of the tokens with their log-probabilities that were generated
//   launch MODEL STEP KERNEL grid block shared    of every kernel that a step launches on a GPU; library products are "cublasLt"
// All goes through the engine. A difference between two files of these lines is a change of results, or of what runs.
//   gates [cpu] [ref] [cuda] [launches] [--fixtures DIR] [--models DIR] [--only MODEL]
// Without a device: cpu and ref, and where there is a GPU cuda and launches.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "core/config.h"
#include "core/error.h"
#include "core/isa.h"
#include "core/json.h"
#include "engine/engine.h"
#include "main.h"
#include "model/arch/arch.h"

namespace mr {
namespace {

namespace fs = std::filesystem;

// FNV-1a, 64 bits.
struct Hash {
  uint64_t value = 0xcbf29ce484222325u;
  void add(const void* data, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) value = (value ^ static_cast<const uint8_t*>(data)[i]) * 0x100000001b3u;
  }
  template <class T>
  void add(const T& x) {
    add(&x, sizeof(T));
  }
};

// Requests of one case: what they said, in the order in which they were submitted.
class Case {
 public:
  Case(Engine& engine, std::string salt, int logprobs)
      : engine_(engine), salt_(std::move(salt)), logprobs_(std::min(logprobs, engine.model().spec().vocab)) {
    for (char c : salt_) seed_ = seed_ * 31 + uint8_t(c);
    rng_.seed(seed_);
  }
  Request request(int n_prompt, int n_tokens) {
    Request r;
    for (int i = 0; i < n_prompt; i++) r.prompt.push_back(int32_t(rng_() % unsigned(engine_.model().spec().vocab)));
    r.cache_salt = salt_;
    r.sampling.temperature = 0;
    r.sampling.max_tokens = n_tokens;
    r.sampling.ignore_eos = true;
    r.sampling.logprobs = logprobs_;
    return r;
  }
  void submit(Request r) {
    if (!error_.empty()) return;
    const size_t first = said_.size();
    said_.resize(first + size_t(r.n));
    if (r.score_prompt)
      r.on_logits = [this, first](int position, std::span<const float> logits) {
        said_[first].add(position);
        said_[first].add(logits.data(), logits.size_bytes());
      };
    try {
      engine_.submit(std::move(r), [this, first](const TokenEvent& e) { take(said_[first + size_t(e.choice)], e); });
    } catch (const Error& e) {
      error_ = e.what();
    }
  }
  void steps(int n) {
    for (int i = 0; i < n; i++) engine_.step();
  }
  std::string result() {
    while (engine_.step()) {
    }
    if (!error_.empty()) return "error: " + error_;
    Hash all;
    for (const Hash& h : said_) all.add(h.value);
    return fmt::format("{:016x}", all.value);
  }

 private:
  void take(Hash& hash, const TokenEvent& e) {
    auto add = [&](const Sampled& s) {
      hash.add(s.token);
      hash.add(s.logprob);
      for (const TopToken& t : s.top) {
        hash.add(t.token);
        hash.add(t.logprob);
      }
    };
    for (const Sampled& s : e.prompt) add(s);
    for (const Sampled& s : e.sampled) add(s);
    if (e.finish == Finish::error) error_ = e.error;
  }

  Engine& engine_;
  std::string salt_, error_;
  int logprobs_;
  uint32_t seed_ = 1;
  std::mt19937 rng_;
  std::vector<Hash> said_;
};

using Lines = std::vector<std::pair<std::string, std::string>>;  // case, hash

// Prompts whose rows are all outputs; decodes, whose prompts have one output each; prompts in pieces, the first of which have none;
// a step of prompts and decodes; more outputs than rows.
Lines run_cases(Engine& engine, bool few) {
  Lines lines;
  auto add = [&](const std::string& name, auto&& fill) {
    Case c(engine, name, 20);
    fill(c);
    lines.emplace_back(name, c.result());
  };
  const int room = engine.max_context();
  for (int rows : {1, 7, 33, 150}) {
    if (rows + 1 > room || (few && rows > 33)) continue;
    add(fmt::format("prompt-{}", rows), [&](Case& c) {
      Request r = c.request(rows, 1);
      r.score_prompt = true;
      c.submit(std::move(r));
    });
  }
  for (int n : {1, 3, 17}) {
    if (few && n > 3) continue;
    add(fmt::format("decode-{}", n), [&](Case& c) {
      for (int i = 0; i < n; i++) c.submit(c.request(1 + 5 * i % 23, few ? 3 : 9));
    });
  }
  if (few) return lines;
  if (room > 220) add("pieces-210", [&](Case& c) { c.submit(c.request(210, 3)); });
  add("mixed", [&](Case& c) {
    for (int i = 0; i < 4; i++) c.submit(c.request(3 + 2 * i, 12));
    c.steps(4);
    Request scored = c.request(25, 2);
    scored.score_prompt = true;
    c.submit(std::move(scored));
    c.submit(c.request(30, 4));
  });
  for (int rows : {1, 9})
    add(fmt::format("choices-5-of-{}", rows), [&](Case& c) {
      Request r = c.request(rows, 4);
      r.n = 5;
      r.sampling.temperature = 1;
      r.sampling.seed = 3;
      c.submit(std::move(r));
    });
  return lines;
}

struct Subject {
  std::string name;
  fs::path path;
  std::optional<uint64_t> random_weights;
  bool large = false;
};

EngineOptions options_for(const Subject& s) {
  EngineOptions o{.max_seqs = 32, .max_batch_tokens = 512, .max_prompt_tokens = 160, .page_tokens = 16};
  o.random_weights = s.random_weights;
  o.max_context = s.large ? 1024 : 0;
  o.state_bytes = int64_t(s.large ? 1024 : 64) << 20;
  return o;
}

std::vector<Subject> fixtures(const fs::path& folder) {
  std::vector<Subject> all;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const fs::path gguf = entry.path() / "model.gguf", config = entry.path() / "config.json";
    bool known = fs::exists(gguf);
    if (fs::exists(config)) known |= std::ranges::count(arch_names(), Json::parse(std::ifstream(config)).value("model_type", "")) > 0;
    if (known) all.push_back({entry.path().filename().string(), fs::exists(gguf) ? gguf : entry.path()});
  }
  std::ranges::sort(all, {}, &Subject::name);
  return all;
}

void print(const std::string& device, const Subject& s, const Lines& lines) {
  for (const auto& [name, hash] : lines) fmt::print("hash {} {} {} {}\n", device, s.name, name, hash);
  std::fflush(stdout);
}

void hash_cpu(const Subject& s) {
  auto run = [&](const std::string& device, EngineOptions options, bool few) {
    auto engine = Engine::create(s.path, options);
    print(device, s, run_cases(*engine, few));
  };
  EngineOptions options = options_for(s);
  for (Isa isa : available_isas())
    for (int threads : {1, 2}) {
      options.isa = isa;
      options.threads = threads;
      run(fmt::format("{}x{}", name_of(isa), threads), options, s.large && isa == Isa::scalar);
    }
  if (s.large) return;
  for (DType kv : {DType::bf16, DType::f32}) {
    options.kv_dtype = kv;
    run(fmt::format("{}x2,kv-{}", name_of(best_isa()), name_of(kv)), options, false);
  }
}

void hash_ref(const Subject& s) {
  if (s.large) return;
  EngineOptions options = options_for(s);
  options.device = "ref";
  auto engine = Engine::create(s.path, options);
  print("ref", s, run_cases(*engine, false));
}

// The default mode repeats itself where no library product and no order of arrival has a say: the others are "unstable".
void hash_cuda(const Subject& s) {
  EngineOptions options = options_for(s);
  options.device = "cuda";
  options.deterministic = true;
  print("cuda,deterministic", s, run_cases(*Engine::create(s.path, options), false));
  options.deterministic = false;
  Lines lines = run_cases(*Engine::create(s.path, options), false), again = run_cases(*Engine::create(s.path, options), false);
  for (size_t i = 0; i < lines.size(); i++)
    if (lines[i] != again[i]) lines[i].second = "unstable";
  print("cuda", s, lines);
}

// Shapes of models, of few layers; their weights are made up.
class Shapes {
 public:
  explicit Shapes(const fs::path& models) : folder_(fs::temp_directory_path() / fmt::format("millrace-gates-{}", ::getpid())) {
    cut("llama-8b", models / "llama-3.1-8b", 3);
    write("llama-1b", Json{{"model_type", "llama"},
                           {"hidden_size", 2048},
                           {"intermediate_size", 8192},
                           {"num_hidden_layers", 3},
                           {"num_attention_heads", 32},
                           {"num_key_value_heads", 8},
                           {"head_dim", 64},
                           {"vocab_size", 32000},
                           {"max_position_embeddings", 4096},
                           {"rms_norm_eps", 1e-5},
                           {"rope_theta", 500000.0},
                           {"tie_word_embeddings", true}});
    write("mixtral", Json{{"model_type", "mixtral"},
                          {"hidden_size", 4096},
                          {"intermediate_size", 14336},
                          {"num_hidden_layers", 2},
                          {"num_attention_heads", 32},
                          {"num_key_value_heads", 8},
                          {"vocab_size", 32000},
                          {"num_local_experts", 8},
                          {"num_experts_per_tok", 2},
                          {"max_position_embeddings", 4096},
                          {"rms_norm_eps", 1e-5},
                          {"rope_theta", 1000000.0}});
    cut("jamba-moe", models / "jamba-moe-4b", 8);
    cut("jamba", models / "jamba-3b", 14);
    cut("mamba-2", models / "mamba-2-2.7b", 3);
  }
  ~Shapes() { fs::remove_all(folder_); }
  const std::vector<Subject>& all() const { return all_; }

 private:
  void cut(const std::string& name, const fs::path& model, int layers) {
    Json config = Json::parse(std::ifstream(model / "config.json"));
    config["num_hidden_layers"] = layers;
    write(name, config);
  }
  void write(const std::string& name, const Json& config) {
    fs::create_directories(folder_ / name);
    std::ofstream(folder_ / name / "config.json") << config;
    all_.push_back({name, folder_ / name, 0, true});
  }

  fs::path folder_;
  std::vector<Subject> all_;
};

// Steps of one engine and the launches of each. A step that a graph repeats launches nothing that is seen: what it captured was said.
class LaunchLog {
 public:
  LaunchLog(const Subject& s, EngineOptions options) : model_(s.name) {
    options.device = "cuda";
    options.overlap = false;
    options.max_seqs = 256;
    options.max_batch_tokens = 1024;
    options.max_prompt_tokens = 0;
    options.state_bytes = int64_t(6) << 30;
    engine_ = Engine::create(s.path, options);
    gpu_ = dynamic_cast<CudaBackend*>(&engine_->backend());
    check(gpu_ != nullptr, "the engine has no CUDA backend");
  }
  void decode(int n) {
    Case c(*engine_, fmt::format("decode-{}", n), 0);
    for (int i = 0; i < n; i++) c.submit(c.request(3, 4));
    c.steps(1);
    log(c, fmt::format("decode-{}", n));
  }
  void prompt() {
    const int rows = std::min(700, engine_->max_context() - 1);
    Case c(*engine_, "prompt", 0);
    c.submit(c.request(rows, 1));
    log(c, fmt::format("prompt-{}", rows));
  }
  // Decodes behind a prefix that all share.
  void shared(int n) {
    const int common = std::min(512, engine_->max_context() - 40);
    Case c(*engine_, fmt::format("shared-{}", n), 0);
    Request first = c.request(common, 1);
    const std::vector<int32_t> prefix = first.prompt;
    c.submit(std::move(first));
    c.steps(2);
    for (int i = 0; i < n; i++) {
      Request r = c.request(3, 4);
      r.prompt.insert(r.prompt.begin(), prefix.begin(), prefix.end());
      c.submit(std::move(r));
    }
    c.steps(1);
    log(c, fmt::format("shared-{}", n));
  }
  void mixed() {
    Case c(*engine_, "mixed", 0);
    for (int i = 0; i < 6; i++) c.submit(c.request(3, 8));
    c.steps(3);
    c.submit(c.request(40, 1));
    c.submit(c.request(90, 1));
    log(c, "mixed-136");
  }

 private:
  void log(Case& c, const std::string& step) {
    gpu_->log_launches([&](const std::string& line) { fmt::print("launch {} {} {}\n", model_, step, line); });
    c.steps(1);
    gpu_->log_launches({});
    c.result();
    std::fflush(stdout);
  }

  std::string model_;
  std::unique_ptr<Engine> engine_;
  CudaBackend* gpu_;
};

void launches(const Subject& s) {
  for (bool deterministic : {false, true}) {
    EngineOptions options = options_for(s);
    options.deterministic = deterministic;
    Subject named = s;
    if (deterministic) named.name += ",deterministic";
    LaunchLog log(named, options);
    for (int n : {1, 2, 8, 16, 32, 64, 128, 256}) log.decode(n);
    for (int n : {1, 16, 128}) log.shared(n);
    log.prompt();
    log.mixed();
  }
}

int run(int argc, char** argv) {
  fs::path fixture_folder = "tests/fixtures/models", models = "bench/models";
  std::string only;
  std::vector<std::string> devices;
  for (int i = 1; i < argc; i++) {
    const std::string word = argv[i];
    if (word == "--fixtures" && i + 1 < argc)
      fixture_folder = argv[++i];
    else if (word == "--models" && i + 1 < argc)
      models = argv[++i];
    else if (word == "--only" && i + 1 < argc)
      only = argv[++i];
    else if (word == "cpu" || word == "ref" || word == "cuda" || word == "launches")
      devices.push_back(word);
    else
      fail("gates [cpu] [ref] [cuda] [launches] [--fixtures DIR] [--models DIR] [--only MODEL], not '{}'", word);
  }
  if (devices.empty())
    devices = cuda_available() ? std::vector<std::string>{"cpu", "ref", "cuda", "launches"} : std::vector<std::string>{"cpu", "ref"};

  std::vector<Subject> subjects = fixtures(fixture_folder);
  if (fs::exists(default_model())) subjects.push_back({"default", default_model(), {}, true});
  Shapes shapes(models);
  std::vector<Subject> for_gpu = shapes.all();
  for_gpu.push_back({"llama_gqa", fixture_folder / "llama_gqa", {}, false});
  auto each = [&](const std::vector<Subject>& list, void (*gate)(const Subject&)) {
    for (const Subject& s : list)
      if (only.empty() || s.name == only) gate(s);
  };
  for (const std::string& device : devices) {
    if (device == "cpu") each(subjects, hash_cpu);
    if (device == "ref") each(subjects, hash_ref);
    if (device == "cuda") {
      each(subjects, hash_cuda);
      each(shapes.all(), hash_cuda);
    }
    if (device == "launches") each(for_gpu, launches);
  }
  return 0;
}

}  // namespace
}  // namespace mr

int main(int argc, char** argv) { return mr::guarded(mr::run, argc, argv); }
