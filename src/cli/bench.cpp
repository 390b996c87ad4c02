// millrace bench: the engine's speed as a share of what this machine's memory and arithmetic allow.
#include <algorithm>

#include "analyze/report.h"
#include "bench/grid.h"
#include "bench/techniques.h"
#include "cli/bench_load.h"
#include "cli/cli.h"
#include "cli/options.h"
#include "cli/plan_text.h"
#include "core/error.h"
#include "hub/models.h"

namespace mr {

namespace {

struct BenchFlags {
  EngineFlags engine;
  LoadFlags load;
  Patience patience;
  std::vector<int> batch{1}, context, prefill{512}, decode;
  bool explain = false, json = false;
  std::vector<std::string> techniques;
  const CLI::App* app = nullptr;
  std::vector<const CLI::Option*> engine_options;
};

EngineSetup setup_of(EngineFlags& f) {
  settle(f);
  return {find_model(f.model), f.options};
}

std::string name_of(const GridRow& r) { return r.shape.prefill ? "prefill" : "decode"; }

// The limit of an operation by the analysis, over the steps of a row: the timer does not know contexts.
double counted_time(std::string_view operation, const GridRow& row, const StepCosts& costs) {
  double seconds = 0;
  for (const StepWork& step : row.m.steps)
    for (const Operation& o : costs.operations(step))
      if (o.name.starts_with(operation) && !o.product) seconds += time_of(o, {row.m.chip}).seconds;
  return seconds;
}

// The limit of a run of operations: its products by their recorded flops and bytes, its attention, scan or convolution by the
// analysis; 0: unknown.
double least_time(const std::string& name, const OpTime& t, const GridRow& row, const StepCosts& costs) {
  double seconds = 0;
  if (t.flops > 0) {
    double rate = row.m.chip.bf16;
    for (const NumberFormat& f : number_formats())
      if (name.find(fmt::format(" {} ", f.name)) != std::string::npos) rate = product_rate(row.m.chip, f.product);
    seconds = std::max(t.bytes / row.m.chip.bandwidth, t.flops / rate);
  }
  constexpr std::pair<std::string_view, std::string_view> parts[] = {
      {"attend", "attention"}, {"diag_scan", "scan"}, {"outer_scan", "scan"}, {"short_conv", "convolution"}};
  for (auto [part, operation] : parts) {
    if (name.find(part) == std::string::npos) continue;
    int64_t calls = 0;  // of all runs that contain it
    for (auto& [other, time] : row.times)
      if (other.find(part) != std::string::npos) calls += time.calls;
    seconds += counted_time(operation, row, costs) * double(t.calls) / double(calls);
  }
  return seconds;
}

Json row_json(const GridRow& r, const StepCosts& costs) {
  Json j{{"workload", name_of(r)}, {"batch", r.shape.batch}, {"context", r.shape.context}, {"tokens", int64_t(r.tokens())}};
  if (r.asked != r.shape.context) j["asked_context"] = r.asked;
  if (!r.error.empty()) {
    j["error"] = r.error;
    return j;
  }
  j.update(measured_json(r.m, r.tokens()));
  if (r.times.empty()) return j;
  j["apart_seconds"] = r.apart_s;
  j["apart_tokens_per_s"] = r.tokens() / r.apart_s;
  for (auto& [op, t] : r.times)
    j["operations"].push_back({{"op", op},
                               {"calls", t.calls},
                               {"seconds", t.seconds},
                               {"bytes", t.bytes},
                               {"flops", t.flops},
                               {"limit_seconds", least_time(op, t, r, costs)}});
  return j;
}

// Operations are timed one by one, each with a wait, so together they take longer than the step.
void print_times(const GridRow& row, const StepCosts& costs) {
  std::vector<std::pair<std::string, OpTime>> ops(row.times.begin(), row.times.end());
  std::ranges::sort(ops, std::greater{}, [](auto& op) { return op.second.seconds; });
  const double all = row.apart_s;
  auto measured = [&](double value, int decimals) { return about(fmt::format("{:.{}f}", value, decimals), row.m.busy()); };
  double counted = 0;
  fmt::print("\n{}, batch {}, context {}: {} tok/s as it runs, {} tok/s taken apart, each operation waited for. Of the {} s of that run:\n",
             name_of(row), row.shape.batch, row.shape.context, measured(row.tokens() / row.m.median(), 1), measured(row.tokens() / all, 1),
             measured(all, 4));
  fmt::print("  {:<34} {:>7} {:>9} {:>6} {:>9} {:>9} {:>9}\n", "operation", "calls", "ms", "share", "GB/s", "GFLOP/s", "of limit");
  for (auto& [name, t] : ops) {
    counted += t.seconds;
    std::string rates =
        t.flops > 0 ? fmt::format("{:>9} {:>9}", measured(t.bytes / t.seconds / 1e9, 1), measured(t.flops / t.seconds / 1e9, 1)) : "";
    double least = least_time(name, t, row, costs);
    fmt::print("  {:<34} {:>7} {:>9} {:>5.1f}% {:<19} {}\n", name, t.calls, measured(t.seconds * 1e3, 2), 100 * t.seconds / all, rates,
               least > 0 ? fmt::format("{:>9}", share_text(least / t.seconds, row.m.busy())) : "");
  }
  double rest = std::max(0.0, all - counted);
  fmt::print("  {:<34} {:>7} {:>9} {:>5.1f}%\n", "scheduling, text, all else", "", measured(rest * 1e3, 2), 100 * rest / all);
  fmt::print("  {:<34} {:>7} {:>9} {:>6} {:>9} {:>9}\n", "limit", "", "", "", measured(row.m.chip.bandwidth / 1e9, 1),
             measured(product_rate(row.m.chip, costs.storage().block_product) / 1e9, 1));
}

void print_head(Engine& engine, const LimitProbe& probe) {
  fmt::print("{}; each row beside the limits of its own seconds, measured before, between and after its runs{}\n", engine_text(engine),
             probe.read_text());
  fmt::print("{}", indented(engine.memory().text(), "  "));
  fmt::print("  {:<8} {:>5} {:>7} {:>7} {:>9} {:>9} {:>9} {:>6} {:>10} {:>12} {:>11} {:>6}  {}\n", "workload", "batch", "context", "tokens",
             "tok/s", "best s", "median s", "spread", "bytes", "flops", "limit tok/s", "share", "bound by");
  std::fflush(stdout);
}

void print_row(const GridRow& r) {
  fmt::print("  {:<8} {:>5} {:>7} {:>7}", name_of(r), r.shape.batch, r.shape.context, int64_t(r.tokens()));
  auto measured = [&](double value, int decimals) { return about(fmt::format("{:.{}f}", value, decimals), r.m.busy()); };
  if (!r.error.empty())
    fmt::print("  {}\n", r.error);
  else
    fmt::print(" {:>9} {:>9} {:>9} {:>6} {:>10} {:>12} {:>11} {:>6}  {}\n", measured(r.tokens() / r.m.median(), 1), measured(r.m.best(), 4),
               measured(r.m.median(), 4), r.m.spread_text(), with_unit(r.m.limit.bytes, "B"), with_unit(r.m.limit.flops, "FLOP"),
               measured(r.tokens() / r.m.limit.seconds, 1), share_text(r.m.share(), r.m.busy()), bound_text(r.m));
  std::fflush(stdout);
}

int bench_grid(BenchFlags& f) {
  std::vector<int> decode = !f.decode.empty() ? f.decode : std::vector<int>{f.context.empty() ? 128 : 32};
  std::vector<GridShape> shapes = grid_shapes(f.batch, f.prefill, decode, f.context);
  std::vector<StepWork> log;
  EngineSetup setup = setup_of(f.engine);
  make_room(setup, shapes);
  setup.options.on_step = [&log](const StepWork& work) { log.push_back(work); };
  auto engine = setup.start();
  StepCosts costs(*engine);
  LimitProbe probe(*engine, setup.isa());
  GridBench bench(*engine, log, probe, costs, f.explain);
  std::vector<GridRow> rows;
  double others = 0;
  if (!f.json) print_head(*engine, probe);
  for (const GridShape& shape : shapes) {
    const GridRow& row = rows.emplace_back(bench.row(shape, f.patience));
    others = std::max(others, row.m.others);
    if (!f.json) print_row(row);
  }
  const bool measured = std::ranges::any_of(rows, [](auto& r) { return r.error.empty(); });
  if (f.json) {
    Json out = Json::array();
    for (const GridRow& row : rows) out.push_back(row_json(row, costs));
    fmt::print("{}\n", out.dump());
  } else {
    if (measured) fmt::print("  tok/s and share are of the median run; best s is the fastest of all\n");
    if (std::ranges::any_of(rows, [](auto& r) { return r.asked != r.shape.context; }))
      fmt::print("  the model's context of {} tokens includes the answer: prompts that would fill it were shortened\n",
                 engine->max_context());
    if (std::ranges::any_of(rows, [](auto& r) { return r.error.empty() && r.m.has_moved(); })) fmt::print("  {}", moved_text());
    for (const GridRow& r : rows)
      if (!r.times.empty()) print_times(r, costs);
    if (f.explain && measured)
      fmt::print(
          "  linear FORMAT [out, in]: products with weights of that shape. What has no line of its own is inside another's: norms and "
          "gates in "
          "the\n  products beside them, rope and the storing of keys and values in attend.\n");
  }
  warn_if_busy(others, f.json);
  check(measured, "nothing could be measured: {}", rows[0].error);
  return 0;
}

// A flag that would have no effect is an error.
void check_flags(const BenchFlags& f) {
  if (f.app->count("--max-seqs"))
    for (int batch : f.batch)
      check(batch <= f.engine.options.max_seqs, "--batch {} runs {} sequences at once, and --max-seqs {} allows fewer", batch, batch,
            f.engine.options.max_seqs);
  if (const Lengths prompt = parse_lengths(f.load.prompt_tokens); f.load.file.empty())
    check(f.load.shared_prefix <= prompt.high, "--shared-prefix {}: no prompt has so many tokens (--prompt-tokens {})",
          f.load.shared_prefix, f.load.prompt_tokens);
  const bool url = !f.load.url.empty(), pictures = url || !f.load.compare.empty(), load = url || f.load.here || !f.load.file.empty();
  for (const char* name : {"--streams", "--rate", "--requests", "--prompt-tokens", "--max-tokens", "--shared-prefix", "--seed"})
    check(load || !f.app->count(name), "{} belongs to a load: --load or --load-file runs it here, --url on a server", name);
  for (const char* name : {"--html", "--svg"})
    check(pictures || !f.app->count(name), "{} plots the rows of servers: --url measures one, --compare takes earlier rows", name);
  for (const CLI::Option* o : f.app->get_options())
    if (o->count() && std::ranges::count(f.engine_options, o))
      check(!pictures, "{} is for an engine in this process, but {} is about servers: give it to `millrace serve`", o->get_name(),
            url ? "--url" : "--compare");
}

int bench(BenchFlags& f) {
  check_flags(f);
  if (!f.load.url.empty() || !f.load.compare.empty()) return bench_url(f.load, f.engine.model, f.patience, f.json);
  if (f.load.here || !f.load.file.empty()) return load_engine(f.load, workload_of(f.load), setup_of(f.engine), f.patience, f.json);
  if (!f.techniques.empty()) return bench_techniques(setup_of(f.engine), f.techniques, f.patience.repeat ? f.patience.repeat : 3, f.json);
  return bench_grid(f);
}

void add_patience_flags(CLI::App& app, Patience& p) {
  const char* group = "How long to measure";
  auto* repeat = app.add_option("--repeat", p.repeat, "exactly this many runs of each row, after a warm-up")
                     ->check(CLI::Range(1, 100000))
                     ->group(group);
  app.add_option("--spread", p.spread, "otherwise until the median of the runs is at most this share above the best")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str()
      ->excludes(repeat)
      ->group(group);
  app.add_option("--budget", p.budget, "but no longer than this per row: 30s, 2m; 5s by default")
      ->check([](const std::string& text) {
        return Patience{.budget = text}.budget_s() > 0 ? "" : text + " is not a time: give seconds (30s) or minutes (2m)";
      })
      ->excludes(repeat)
      ->group(group);
}

CLI::Option* add_list(CLI::App& app, const char* name, std::vector<int>& list, int most, const char* help) {
  return app.add_option(name, list, help)->delimiter(',')->allow_extra_args(false)->check(CLI::Range(1, most));
}

}  // namespace

void add_bench(CLI::App& program, Action& chosen) {
  add_command<BenchFlags>(
      program, chosen, "bench", "measure the speed, and its share of this machine's limit",
      [](CLI::App& app, BenchFlags& f) {
        add_engine_flags(app, f.engine);
        f.app = &app;
        for (const CLI::Option* o : app.get_options())
          if (!o->get_positional() && o->get_name() != "--help") f.engine_options.push_back(o);
        constexpr int most = 1 << 20;
        add_list(app, "--batch", f.batch, 4096, "sequences at once: 1,4,16")->capture_default_str();
        auto* context =
            add_list(app, "--context", f.context, most, "tokens of context: 512,2048; prompts of that length, then decode after them");
        add_list(app, "--prefill", f.prefill, most, "without --context: prompt lengths to read")->excludes(context)->capture_default_str();
        add_list(app, "--decode", f.decode, most,
                 "how many tokens to write, one by one; 128 from an empty context, or 32 after --context");
        app.add_flag("--explain", f.explain, "where the time goes: runs each row once more and times every operation, with its own limit");
        std::vector<std::string> names = technique_names();
        names.push_back("all");
        app.add_option("--techniques", f.techniques, "the gain of each over its plain form: " + CLI::detail::join(names, ", "))
            ->delimiter(',')
            ->allow_extra_args(false)
            ->check(CLI::IsMember(names));
        app.add_flag("--json", f.json, "a list of rows");
        add_patience_flags(app, f.patience);
        add_load_flags(app, f.load);
        for (const char* load : {"--load", "--load-file", "--url"})
          for (const char* other : {"--batch", "--context", "--prefill", "--decode", "--explain", "--techniques"})
            app.get_option(load)->excludes(app.get_option(other));
        for (const char* other : {"--batch", "--context", "--prefill", "--decode", "--explain", "--spread", "--budget"})
          app.get_option("--techniques")->excludes(app.get_option(other));
      },
      bench);
}

}  // namespace mr
