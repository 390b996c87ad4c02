// millrace bench: how fast prefill and decode are, beside what this machine's memory and arithmetic allow.
#include <algorithm>
#include <cmath>

#include "backend/cpu/probe.h"
#include "backend/timed_backend.h"
#include "cli/bench_load.h"
#include "cli/bench_techniques.h"
#include "cli/cli.h"
#include "cli/options.h"
#include "core/error.h"

namespace mr {

namespace {

struct BenchFlags {
  EngineFlags engine;
  LoadFlags load;
  std::vector<int> prefill{512}, decode{128};
  int repeat = 5;
  bool explain = false, json = false;
  std::vector<std::string> techniques;
};

// What the machine allows, measured on the model's own weights.
struct Limits {
  double bytes_per_s, linear_flops_per_s, float_flops_per_s;
};

struct Row {
  std::string workload;
  int tokens = 0;
  std::vector<double> seconds;  // of each repetition
  double bytes = 0, flops = 0;  // that the workload must move and compute
  double limit_s = 0;
  std::map<std::string, OpTime> times;  // of the last repetition

  double best() const { return *std::ranges::min_element(seconds); }
  double median() const {
    std::vector<double> s = seconds;
    std::ranges::sort(s);
    return s[s.size() / 2];
  }
};

bool is_quantized(const Engine& engine) {
  std::map<std::string, size_t> bytes;
  for (const StoredTensor& t : engine.checkpoint().tensors()) bytes[t.format] += t.bytes.size();
  if (bytes.empty()) return false;
  auto largest = std::ranges::max_element(bytes, {}, [](auto& entry) { return entry.second; });
  const FormatOps* format = find_format(largest->first);
  return format && format->format.group > 1;
}

Limits measure_limits(Engine& engine, Isa isa) {
  ThreadPool& pool = engine.backend().pool();
  double floats = float_rate(isa, pool);
  return {read_bandwidth(engine.model().weights(), isa, pool), is_quantized(engine) ? quantized_rate(isa, pool) : floats, floats};
}

// 4 flops a query, key and channel, for q . k and p . v; `pairs` query-key pairs.
double attention_flops(const ModelSpec& spec, double pairs) {
  double flops = 0;
  for (const LayerSpec& layer : spec.layers)
    if (auto* a = std::get_if<AttentionSpec>(&layer.mixer)) flops += 4.0 * a->heads * a->head_dim * pairs;
  return flops;
}

// Weights of all linear layers inside the blocks that a token passes through.
double block_weights(const ModelSpec& spec) {
  return double(active_parameters(spec)) - double(spec.vocab) * spec.dim * (spec.tied ? 1 : 2);
}

double run_once(Engine& engine, int n_prompt, int n_generated) {
  Request request;
  uint64_t x = 88172645463325252u;  // any tokens do, but not always the same one
  for (int i = 0; i < n_prompt; i++) {
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    request.prompt.push_back(int32_t(x % uint64_t(engine.model().spec().vocab)));
  }
  request.sampling.temperature = 0;
  request.sampling.ignore_eos = true;
  request.sampling.max_tokens = n_generated;
  Timing timing;
  run_alone(engine, std::move(request), [&](const TokenEvent& event) {
    if (event.finish != Finish::none) timing = event.timing;
  });
  return n_generated == 1 ? timing.first_token_s - timing.started_s : timing.last_token_s - timing.first_token_s;
}

Row measure(Engine& engine, Row row, int n_prompt, int n_generated, int repeat) {
  auto* timed = dynamic_cast<TimedBackend*>(&engine.backend());
  run_once(engine, n_prompt, std::min(n_generated, 8));  // touches memory that is new
  for (int i = 0; i < repeat; i++) {
    if (timed) timed->reset();
    row.seconds.push_back(run_once(engine, n_prompt, n_generated));
  }
  if (timed) row.times = timed->times();
  return row;
}

Row bench_prefill(Engine& engine, const Limits& limits, int tokens, int repeat) {
  const ModelSpec& spec = engine.model().spec();
  double attention = attention_flops(spec, 0.5 * tokens * (tokens + 1.0)),
         linear = 2.0 * tokens * block_weights(spec) + 2.0 * spec.vocab * spec.dim;
  double bytes = double(engine.model().decode_bytes());
  Row row{"prefill", tokens, {}, bytes, linear + attention};
  row.limit_s = std::max(linear / limits.linear_flops_per_s + attention / limits.float_flops_per_s, bytes / limits.bytes_per_s);
  return measure(engine, row, tokens, 1, repeat);
}

Row bench_decode(Engine& engine, const Limits& limits, int tokens, int repeat) {
  const ModelSpec& spec = engine.model().spec();
  double context = 0.5 * (tokens + 1);  // on average; it begins empty
  double bytes = tokens * (double(engine.model().decode_bytes()) + context * double(engine.model().layout().bytes_per_token()) +
                           2.0 * double(engine.model().layout().bytes_per_sequence()));
  Row row{
      "decode", tokens, {}, bytes, tokens * (2 * (block_weights(spec) + double(spec.vocab) * spec.dim) + attention_flops(spec, context))};
  row.limit_s = bytes / limits.bytes_per_s;
  return measure(engine, row, 1, tokens + 1, repeat);
}

Json row_json(const Row& r) {
  Json j{{"workload", r.workload},
         {"batch", 1},
         {"tokens", r.tokens},
         {"tokens_per_s", r.tokens / r.best()},
         {"seconds", r.best()},
         {"median_seconds", r.median()},
         {"repeat", r.seconds.size()},
         {"bytes", r.bytes},
         {"flops", r.flops},
         {"limit_tokens_per_s", r.tokens / r.limit_s},
         {"share_of_limit", r.limit_s / r.best()}};
  for (auto& [op, t] : r.times)
    j["operations"].push_back({{"op", op}, {"calls", t.calls}, {"seconds", t.seconds}, {"bytes", t.bytes}, {"flops", t.flops}});
  return j;
}

void print_times(const Row& row, const Limits& limits) {
  std::vector<std::pair<std::string, OpTime>> ops(row.times.begin(), row.times.end());
  std::ranges::sort(ops, std::greater{}, [](auto& op) { return op.second.seconds; });
  double counted = 0;
  fmt::print("\nWhere the time of {} {} went:\n  {:<34} {:>7} {:>9} {:>6} {:>9} {:>9}\n", row.workload, row.tokens, "operation", "calls",
             "ms", "share", "GB/s", "GFLOP/s");
  for (auto& [name, t] : ops) {
    counted += t.seconds;
    std::string rates = t.flops > 0 ? fmt::format("{:>9.1f} {:>9.1f}", t.bytes / t.seconds / 1e9, t.flops / t.seconds / 1e9) : "";
    fmt::print("  {:<34} {:>7} {:>9.2f} {:>5.1f}% {}\n", name, t.calls, t.seconds * 1e3, 100 * t.seconds / row.seconds.back(), rates);
  }
  double rest = std::max(0.0, row.seconds.back() - counted);
  fmt::print("  {:<34} {:>7} {:>9.2f} {:>5.1f}%\n", "scheduling, text, all else", "", rest * 1e3, 100 * rest / row.seconds.back());
  fmt::print("  {:<34} {:>7} {:>9} {:>6} {:>9.1f} {:>9.1f}\n", "limit", "", "", "", limits.bytes_per_s / 1e9,
             limits.linear_flops_per_s / 1e9);
}

int bench(BenchFlags& f) {
  if (!f.load.url.empty() || !f.load.compare.empty()) return bench_url(f.load, f.engine.model, f.json);
  if (!f.techniques.empty()) return bench_techniques(f.engine, f.techniques, f.repeat, f.json);
  f.engine.options.timed = f.explain;
  f.engine.no_prefix_cache = true;
  auto engine = start_engine(f.engine);
  Isa isa = f.engine.options.isa.value_or(best_isa());
  Limits limits = measure_limits(*engine, isa);
  std::vector<Row> rows;
  for (int tokens : f.prefill) rows.push_back(bench_prefill(*engine, limits, tokens, f.repeat));
  for (int tokens : f.decode) rows.push_back(bench_decode(*engine, limits, tokens, f.repeat));
  if (f.json) {
    Json out = Json::array();
    for (const Row& row : rows) out.push_back(row_json(row));
    fmt::print("{}\n", out.dump());
    return 0;
  }
  fmt::print("{}, {} threads, {}: reads {:.1f} GB/s, linear layers at most {:.0f} GFLOP/s (measured)\n",
             engine->checkpoint().path().filename().string(), engine->backend().pool().size(), name_of(isa), limits.bytes_per_s / 1e9,
             limits.linear_flops_per_s / 1e9);
  fmt::print("  {:<8} {:>7} {:>10} {:>10} {:>10} {:>12} {:>6}\n", "workload", "tokens", "tok/s", "best s", "median s", "limit tok/s",
             "share");
  for (const Row& r : rows)
    fmt::print("  {:<8} {:>7} {:>10.1f} {:>10.4f} {:>10.4f} {:>12.1f} {:>5.0f}%\n", r.workload, r.tokens, r.tokens / r.best(), r.best(),
               r.median(), r.tokens / r.limit_s, 100 * r.limit_s / r.best());
  if (f.explain)
    for (const Row& r : rows) print_times(r, limits);
  return 0;
}

}  // namespace

void add_bench(CLI::App& program, Action& chosen) {
  add_command<BenchFlags>(
      program, chosen, "bench", "measured speed beside this machine's measured limit",
      [](CLI::App& app, BenchFlags& f) {
        add_engine_flags(app, f.engine);
        app.add_option("--prefill", f.prefill, "prompt lengths to read: 128,512")
            ->delimiter(',')
            ->allow_extra_args(false)
            ->check(CLI::Range(1, 1 << 20))
            ->capture_default_str();
        app.add_option("--decode", f.decode, "how many tokens to write, one by one: 128")
            ->delimiter(',')
            ->allow_extra_args(false)
            ->check(CLI::Range(1, 1 << 20))
            ->capture_default_str();
        app.add_option("--repeat", f.repeat, "runs of each; the best counts")->check(CLI::Range(1, 1000))->capture_default_str();
        app.add_flag("--explain", f.explain, "where the time goes, by operation");
        std::vector<std::string> names = technique_names();
        names.push_back("all");
        app.add_option("--techniques", f.techniques, "what each gains over its plain form: " + CLI::detail::join(names, ", "))
            ->delimiter(',')
            ->allow_extra_args(false)
            ->check(CLI::IsMember(names));
        app.add_flag("--json", f.json, "a list of rows");
        add_load_flags(app, f.load);
      },
      bench);
}

}  // namespace mr
