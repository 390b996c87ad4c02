// The workloads that vLLM 0.26 was measured with on one H200, through the engine: decode steps, prefill, 256 requests at once, the
// same behind a shared prefix, start to first token. Prints each beside vLLM's figure. MODEL is a directory with the config.json of
// the Llama-3.1-8B shape; its weights are made up.
//   cuda_peers MODEL [--only d1,d16,d64,d128,d256,p1,p8,mixed,prefix] [--runs N] [--deterministic] [--memory GB]
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "main.h"

namespace mr {
namespace {

using Seconds = std::chrono::duration<double>;
double now() { return Seconds(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Python's random.Random(0).randint(128, 1024), 256 times: its generator is seeded by an array of one word, and a range of 897
// values takes 10 bits of a word, again while they are too large.
std::vector<int> prompt_lengths() {
  std::vector<uint32_t> mt(624);
  mt[0] = 19650218u;
  for (uint32_t i = 1; i < 624; i++) mt[i] = 1812433253u * (mt[i - 1] ^ (mt[i - 1] >> 30)) + i;
  uint32_t i = 1;
  for (int k = 0; k < 624; k++) {
    mt[i] = (mt[i] ^ ((mt[i - 1] ^ (mt[i - 1] >> 30)) * 1664525u));  // plus the key, 0, and its index, 0
    if (++i >= 624) {
      mt[0] = mt[623];
      i = 1;
    }
  }
  for (int k = 0; k < 623; k++) {
    mt[i] = (mt[i] ^ ((mt[i - 1] ^ (mt[i - 1] >> 30)) * 1566083941u)) - i;
    if (++i >= 624) {
      mt[0] = mt[623];
      i = 1;
    }
  }
  mt[0] = 0x80000000u;
  size_t at = 624;
  auto word = [&] {
    if (at == 624) {
      for (size_t k = 0; k < 624; k++) {
        uint32_t y = (mt[k] & 0x80000000u) | (mt[(k + 1) % 624] & 0x7fffffffu);
        mt[k] = mt[(k + 397) % 624] ^ (y >> 1) ^ (y & 1 ? 0x9908b0dfu : 0);
      }
      at = 0;
    }
    uint32_t y = mt[at++];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    return y ^ (y >> 18);
  };
  std::vector<int> lengths;
  while (lengths.size() < 256) {
    uint32_t r = word() >> 22;
    if (r < 897) lengths.push_back(128 + int(r));
  }
  return lengths;
}

struct Bench {
  Engine& engine;
  const std::vector<double>& decode_steps;  // milliseconds of every step so far that read no prompt
  int runs = 3;                             // of each length of a decode; the best counts
  std::mt19937 rng{1};

  std::vector<int32_t> prompt(int n) {
    std::vector<int32_t> tokens(static_cast<size_t>(n));
    const auto vocab = uint32_t(std::min<int64_t>(engine.model().spec().vocab, 128000));  // Llama 3 has special tokens above
    for (int32_t& t : tokens) t = int32_t(rng() % vocab);
    return tokens;
  }
  // Seconds from the first submit to the last token.
  double run(const std::vector<std::vector<int32_t>>& prompts, int n_out) {
    double begin = now();
    int failed = 0;
    for (const auto& p : prompts) {
      Request r;
      r.prompt = p;
      r.sampling.temperature = 0;
      r.sampling.max_tokens = n_out;
      r.sampling.ignore_eos = true;
      engine.submit(std::move(r), [&](const TokenEvent& e) { failed += e.finish == Finish::error; });
    }
    while (engine.step()) {
    }
    if (failed) fmt::print("{} requests failed\n", failed);
    return now() - begin;
  }
  std::vector<std::vector<int32_t>> prompts(int n, int length) {
    std::vector<std::vector<int32_t>> all;
    for (int i = 0; i < n; i++) all.push_back(prompt(length));
    return all;
  }

  void decode(int n, double vllm, double target) {
    double few = 1e9, many = 1e9;
    const size_t before = decode_steps.size();
    run(prompts(n, 1024 - 80), 16 + 128);
    for (int i = 0; i < runs; i++) {  // new prompts each time: no prefix is cached
      few = std::min(few, run(prompts(n, 1024 - 80), 16));
      many = std::min(many, run(prompts(n, 1024 - 80), 16 + 128));
    }
    std::vector<double> steps(decode_steps.begin() + int64_t(before), decode_steps.end());
    std::ranges::nth_element(steps, steps.begin() + int64_t(steps.size() / 2));
    fmt::print("decode step B={:<4} S~1024   {:8.2f} ms   vLLM {:6.2f}   target {}   (median of all steps {:.2f})\n", n,
               (many - few) / 128 * 1e3, vllm, target, steps[steps.size() / 2]);
    std::fflush(stdout);
  }
  void prefill(int n, int length, double vllm, double target) {
    double best = 1e9;
    for (int i = 0; i < 5; i++) best = std::min(best, run(prompts(n, length), 1) * 1e3);
    fmt::print("prefill {} x {}           {:8.2f} ms   vLLM {:6.1f}   target {}\n", n, length, best, vllm, target);
    std::fflush(stdout);
  }
  void mixed(int n_shared, double vllm, double target) {
    std::vector<int> lengths = prompt_lengths();
    std::vector<std::vector<int32_t>> all;
    std::vector<int32_t> shared = prompt(n_shared);
    if (n_shared) run({shared}, 1);
    int64_t n_tokens = 0;
    for (int n : lengths) {
      auto& p = all.emplace_back(shared);
      for (int32_t t : prompt(n)) p.push_back(t);
      n_tokens += n;
    }
    const int64_t before = engine.stats().steps;
    const size_t first = decode_steps.size();
    double seconds = run(all, 128);
    const size_t n_decode = decode_steps.size() - first;
    const double decode = std::accumulate(decode_steps.begin() + int64_t(first), decode_steps.end(), 0.0) / 1e3;
    fmt::print(
        "256 requests{}, {} prompt tokens  {:6.2f} s  {:6.0f} out tok/s   vLLM {}   target {}   ({} steps read prompts, {} "
        "took {:.2f} s for tokens alone)\n",
        n_shared ? " behind 1024" : "", n_tokens, seconds, 256 * 128 / seconds, vllm, target,
        engine.stats().steps - before - int64_t(n_decode), n_decode, decode);
    std::fflush(stdout);
  }
};

int run(int argc, char** argv) {
  int runs = 3;
  std::string only;  // the lines that are wanted, each with a comma behind it; empty: all
  auto wanted = [&](const std::string& line) { return only.empty() || only.find(line + ",") != std::string::npos; };
  EngineOptions options{.device = "cuda", .max_seqs = 256, .max_batch_tokens = 16384, .max_context = 4096, .random_weights = 0};
  if (argc < 2) {
    fmt::print(stderr, "cuda_peers MODEL [--only d1,mixed] [--runs N] [--deterministic] [--memory GB]\n");
    return 2;
  }
  for (int i = 2; i < argc; i++) {
    options.deterministic |= !std::strcmp(argv[i], "--deterministic");
    if (!std::strcmp(argv[i], "--only") && i + 1 < argc) only = std::string(argv[++i]) + ",";
    if (!std::strcmp(argv[i], "--runs") && i + 1 < argc) runs = std::atoi(argv[++i]);
    if (!std::strcmp(argv[i], "--memory") && i + 1 < argc) options.state_bytes = int64_t(std::atof(argv[++i]) * 1e9);
  }
  std::vector<double> decode_steps;
  options.on_step = [&](const StepWork& work) {
    if (!work.prefill) decode_steps.push_back(Seconds(work.end - work.begin).count() * 1e3);
  };
  double begin = now();
  auto engine = Engine::create(argv[1], options);
  double loaded = now();
  Bench bench{*engine, decode_steps, runs};
  bench.run(bench.prompts(1, 16), 1);
  fmt::print("start to first token {:.2f} s (engine {:.2f} s)   vLLM 85   target 4\n{}", now() - begin, loaded - begin,
             engine->memory().text());
  std::fflush(stdout);
  // Prefill first: right behind minutes of other work a GPU is at its power limit and takes some percent longer.
  if (wanted("p1")) bench.prefill(1, 2048, 52.3, 47);
  if (wanted("p8")) bench.prefill(8, 2048, 386, 370);
  struct Decode {
    int n;
    double vllm, target;
  };
  for (auto [n, vllm, target] : {Decode{1, 4.92, 4.1}, {16, 5.57, 4.8}, {64, 7.47, 6.6}, {128, 10.47, 9.2}, {256, 17.56, 15.5}})
    if (wanted(fmt::format("d{}", n))) bench.decode(n, vllm, target);
  for (int i = 0; i < 2 && wanted("mixed"); i++) bench.mixed(0, 6076, 6700);
  for (int i = 0; i < 2 && wanted("prefix"); i++) bench.mixed(1024, 5276, 6300);
  return 0;
}

}  // namespace
}  // namespace mr

int main(int argc, char** argv) { return mr::guarded(mr::run, argc, argv); }
