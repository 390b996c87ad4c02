// millrace bench --techniques: the gain of each technique over its plain form, both measured alternately on the same synthetic load,
// so that disturbances affect both. The first line of a technique is the plain form.
#include "bench/techniques.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "analyze/report.h"
#include "backend/op_times.h"
#include "bench/offline_load.h"
#include "bench/traffic.h"
#include "core/config.h"
#include "core/error.h"
#include "core/progress.h"

namespace mr {

namespace {

struct Setting {
  std::string name;
  EngineSetup setup;
  std::vector<Job> jobs;
  bool plain = false;  // the baseline of the settings after it
  Pace pace{};
  bool attention = false;  // record its share of the time
};

// The quantity in which a technique's gain is measured.
enum class In : uint8_t { seconds, e2e, gap };

struct Technique {
  std::string name, says;
  std::vector<Setting> settings;
  In in = In::seconds;
  std::string refused{};  // why it cannot be measured here, and what to do; empty: none
  bool grows = false;     // settings of growing length, plain and with it in turn, each pair twice as long as the one before
};

struct Outcome : LoadOutcome {
  double bytes = 0, flops = 0, attention_flops = 0;  // by the analysis
  double attention_s = 0;                            // of the time, if recorded
};

double value_of(const Outcome& o, In in) { return in == In::seconds ? o.seconds : in == In::gap ? o.gap_s : percentile(o.e2e_s, 0.5); }

// What the loads are derived from.
struct Facts {
  std::string engine;  // model, threads, instruction set
  int context = 2048;
  int64_t bytes_per_token = 1;
  double requests_per_s = 1;  // of the mixed load, at full speed

  int longest() const { return std::min(context, 2048); }
  int64_t memory_for(int64_t tokens) const { return tokens * bytes_per_token; }
};

// Realistic lengths: many short, a few long.
std::vector<Job> mixed_load(int n, int longest_answer) {
  std::mt19937 rng(7);
  std::vector<Job> jobs;
  for (int i = 0; i < n; i++) {
    double u = double(rng() % 1000) / 1000, v = double(rng() % 1000) / 1000;
    jobs.push_back({8 + int(120 * u * u), 4 + int(double(longest_answer - 4) * v * v)});
  }
  return jobs;
}
std::vector<Job> crowd() { return mixed_load(48, 128); }

template <class Change>
EngineSetup with(EngineSetup setup, Change change) {
  change(setup);
  return setup;
}

Technique kv_cache(const EngineSetup& base, const Facts&) {
  Technique t{"kv-cache", "keys and values are kept; without them every token computes its whole context anew", {}};
  t.grows = true;
  for (int n : {32, 64, 128, 256}) {
    std::vector<Job> one{{n, n / 4}};
    std::string tokens = fmt::format("{} + {} tokens", n, n / 4);
    t.settings.push_back({"none, " + tokens, with(base, [](auto& f) { f.options.kv_cache = false; }), one, true});
    t.settings.push_back({"kept, " + tokens, base, one});
    for (Setting& s : std::span(t.settings).last(2)) s.attention = true;
  }
  return t;
}

Technique batching(const EngineSetup& base, const Facts&) {
  return {"batching",
          "48 requests of unequal length: rows join and leave at every step, none is padded",
          {{"one at a time", with(base, [](auto& f) { f.options.max_seqs = 1; }), crowd()},
           {"static", with(base, [](auto& f) { f.options.batching = Batching::fixed; }), crowd()},
           {"continuous", base, crowd()}}};
}

Technique arrivals(const EngineSetup& base, const Facts& facts) {
  const double rate = 0.7 * facts.requests_per_s;
  const Pace pace{0, poisson_arrivals(rate, 48, 7)};
  Technique t{"arrivals",
              fmt::format("the same requests, {} a second at random moments, 0.7 of what continuous batching can do; gain in the "
                          "median time to an answer's end",
                          figure(rate, 2)),
              {{"static", with(base, [](auto& f) { f.options.batching = Batching::fixed; }), crowd(), false, pace},
               {"dynamic", with(base, [](auto& f) { f.options.batching = Batching::dynamic; }), crowd(), false, pace},
               {"continuous", base, crowd(), false, pace}}};
  t.in = In::e2e;
  return t;
}

Technique ragged(const EngineSetup& base, const Facts&) {
  std::vector<Job> one_batch = mixed_load(16, 128);
  return {"ragged",
          "one batch of 16 requests of unequal length: rows of their own length, or padded to the longest prompt and answer",
          {{"padded",
            with(base,
                 [](auto& f) {
                   f.options.batching = Batching::fixed;
                   f.options.max_seqs = 16;
                 }),
            one_batch},
           {"ragged", with(base, [](auto& f) { f.options.max_seqs = 16; }), one_batch}}};
}

Technique paging(const EngineSetup& base, const Facts& facts) {
  auto few_tokens = [&](EngineSetup& f) {
    f.options.max_context = facts.longest();
    f.options.state_bytes = facts.memory_for(2 * facts.longest() + 64);
  };
  return {"paging",
          fmt::format("48 requests of unequal length in memory for two sequences of {} tokens", facts.longest()),
          {{"contiguous",
            with(base,
                 [&](auto& f) {
                   few_tokens(f);
                   f.options.contiguous = true;
                 }),
            crowd()},
           {"paged", with(base, few_tokens), crowd()}}};
}

Technique chunked_prefill(const EngineSetup& base, const Facts& facts) {
  std::vector<Job> beside{{16, 96}, {16, 96}, {16, 96}, {16, 96}, {std::min(1024, facts.longest() - 8), 4, 0, 1, true}};
  Technique t{"chunked-prefill",
              "four answers are written when a long prompt comes: gain in how long they stand still",
              {{"whole prompt", with(base, [](auto& f) { f.options.max_batch_tokens = 2048; }), beside},
               {"chunks of 128", with(base, [](auto& f) { f.options.max_prompt_tokens = 128; }), beside},
               {"chunks of 32", with(base, [](auto& f) { f.options.max_prompt_tokens = 32; }), beside}}};
  t.in = In::gap;
  return t;
}

Technique prefix_cache(const EngineSetup& base, const Facts&) {
  std::vector<Job> begin_alike(16, Job{544, 16, 512});
  return {"prefix-cache",
          "16 requests whose prompts share 512 tokens of 544",
          {{"none", with(base, [](auto& f) { f.options.prefix_cache = false; }), begin_alike}, {"shared", base, begin_alike}}};
}

Technique copy_on_write(const EngineSetup& base, const Facts&) {
  std::vector<Job> eight(8, Job{512, 16, 512});
  return {"copy-on-write",
          "8 answers to one prompt of 512 tokens",
          {{"8 requests", with(base, [](auto& f) { f.options.prefix_cache = false; }), eight},
           {"n = 8", with(base, [](auto& f) { f.options.prefix_cache = false; }), {{512, 16, 0, 8}}}}};
}

Technique preemption(const EngineSetup& base, const Facts& facts) {
  std::vector<Job> greedy_load = mixed_load(32, 256);
  auto tight = [&](Victim victim, bool swap) {
    EngineSetup f = base;
    f.options.max_context = 512;
    f.options.state_bytes = facts.memory_for(1536);
    f.options.prefix_cache = false;
    f.options.victim = victim;
    if (swap) f.options.swap_bytes = facts.memory_for(4096);
    return f;
  };
  return {"preemption",
          "32 requests in memory for 1,536 tokens, no prefix cache: who gives way, and is its state computed anew or swapped?",
          {{"recompute, newest", tight(Victim::newest, false), greedy_load},
           {"recompute, largest", tight(Victim::largest, false), greedy_load},
           {"swap, newest", tight(Victim::newest, true), greedy_load},
           {"swap, largest", tight(Victim::largest, true), greedy_load}}};
}

Technique overlap(const EngineSetup& base, const Facts&) {
  return {"overlap",
          "the next step is planned, and the last one's output delivered, while a step runs",
          {{"one after the other", with(base, [](auto& f) { f.options.overlap = false; }), crowd()}, {"beside it", base, crowd()}}};
}

Technique threads(const EngineSetup& base, const Facts&) {
  Technique t{"threads", "48 requests of unequal length on more threads", {}};
  for (int n = 1; n <= std::max(1, default_threads()); n *= 2)
    t.settings.push_back({fmt::format("{}", n), with(base, [&](auto& f) { f.options.threads = n; }), crowd()});
  if (t.settings.size() < 2) t.refused = "this machine has one core, and a second thread would wait for the first";
  return t;
}

Technique instruction_sets(const EngineSetup& base, const Facts&) {
  Technique t{"instruction-sets",
              "48 requests of unequal length with each vector instruction set of this machine (scalar, many times slower, is left out)",
              {}};
  for (Isa isa : available_isas())
    if (isa != Isa::scalar) t.settings.push_back({std::string(name_of(isa)), with(base, [&](auto& f) { f.options.isa = isa; }), crowd()});
  if (t.settings.size() < 2) t.refused = "this machine has no two of them to compare";
  return t;
}

// The model's file and its siblings that differ in the format, "X.Q4_0.gguf" and "X.F16.gguf".
std::vector<std::filesystem::path> files_of_other_formats(const std::filesystem::path& model) {
  std::vector<std::filesystem::path> files{model};
  const std::string name = model.stem().stem().string();
  if (model.extension() == ".gguf")
    for (auto& entry : std::filesystem::directory_iterator(model.parent_path().empty() ? "." : model.parent_path()))
      if (const auto& p = entry.path();
          p.extension() == ".gguf" && p.stem().has_extension() && p.stem().stem() == name && p.filename() != model.filename())
        files.push_back(p);
  std::ranges::sort(files, std::greater{}, [](auto& p) { return std::filesystem::is_regular_file(p) ? std::filesystem::file_size(p) : 0; });
  return files;
}

Technique formats(const EngineSetup& base, const Facts&) {
  Technique t{"formats", "48 requests of unequal length with the formats of this model's weights that lie beside its file", {}};
  const std::filesystem::path& model = base.model;
  for (const auto& file : files_of_other_formats(model))
    t.settings.push_back({file.stem().has_extension() ? file.stem().extension().string().substr(1) : file.filename().string(),
                          with(base, [&](auto& f) { f.model = file; }), crowd()});
  if (t.settings.size() < 2)
    t.refused = model.extension() == ".gguf"
                    ? fmt::format(
                          "there is no file of another format beside {}; `python3 bench/peers/gguf_variants.py {} {} Q8_0 F16` writes "
                          "such files",
                          model.filename().string(), model.string(), (model.has_parent_path() ? model.parent_path() : ".").string())
                    : "formats are compared between GGUF files of one folder, NAME.Q4_1.gguf and NAME.Q8_0.gguf, and this model is none";
  return t;
}

Technique kv_formats(const EngineSetup& base, const Facts& facts) {
  std::vector<Job> long_ones(8, Job{std::min(1024, facts.longest() / 2), 64});
  Technique t{"kv-formats", "8 answers of 64 tokens to long prompts: in what keys and values are kept", {}};
  for (const KvFormat& format : mr::kv_formats()) {
    if (base.options.device == "cuda" && format.largest > 0) continue;
    t.settings.push_back({std::string(format.name), with(base, [&](auto& f) { f.options.kv_dtype = format.element; }), long_ones});
  }
  return t;
}

// All techniques. Each starts from the user's options and changes only its own.
struct Entry {
  const char* name;
  Technique (*make)(const EngineSetup&, const Facts&);
  bool of_tokens = false;  // concerns state that grows with every token
};
constexpr Entry entries[] = {{"kv-cache", kv_cache, true},
                             {"batching", batching},
                             {"arrivals", arrivals},
                             {"ragged", ragged},
                             {"paging", paging, true},
                             {"chunked-prefill", chunked_prefill},
                             {"prefix-cache", prefix_cache},
                             {"copy-on-write", copy_on_write},
                             {"preemption", preemption, true},
                             {"overlap", overlap},
                             {"threads", threads},
                             {"instruction-sets", instruction_sets},
                             {"formats", formats},
                             {"kv-formats", kv_formats, true}};

void count_costs(Outcome& o, const std::vector<StepWork>& steps, const StepCosts& costs) {
  for (const StepWork& step : steps)
    for (const Operation& op : costs.operations(step)) {
      o.bytes += op.bytes();
      o.flops += op.flops;
      if (op.name.starts_with("attention") && !op.product) o.attention_flops += op.flops;
    }
}

Outcome run_once(const Setting& setting, unsigned round) {
  EngineSetup setup = setting.setup;
  std::vector<StepWork> log;
  setup.options.on_step = [&log](const StepWork& work) { log.push_back(work); };
  auto engine = setup.start();
  StepCosts costs(*engine);
  run_load(*engine, {{16, 4}}, {}, 999);  // touches new memory
  OpTimes times;
  if (setting.attention) engine->observe(&times);
  log.clear();
  Outcome out{run_load(*engine, setting.jobs, setting.pace, round)};
  count_costs(out, log, costs);
  for (auto& [name, time] : times.times())
    if (name.find("attend") != std::string::npos) out.attention_s += time.seconds;
  return out;
}

struct Measurement {
  std::vector<Outcome> outcomes;  // of all runs
  Measured runs;                  // their times alone
  double gain = 1;
  const Outcome& median() const { return runs.median_of(outcomes); }
};

// All settings once, then all of them again; `done` is called for each after its last run.
std::vector<Measurement> measure(const Technique& t, int repeat, const std::function<void(const Setting&, const Measurement&)>& done) {
  std::vector<Measurement> out(t.settings.size());
  Progress progress;
  OtherPrograms others;
  double plain = 0;
  for (int round = 0; round < repeat; round++)
    for (size_t i = 0; i < out.size(); i++) {
      progress.show(fmt::format("{}, {}: run {} of {}", t.name, t.settings[i].name, round + 1, repeat));
      Outcome once = run_once(t.settings[i], unsigned(round));
      Measurement& m = out[i];
      m.runs.seconds.push_back(once.seconds);
      m.outcomes.push_back(std::move(once));
      if (round + 1 < repeat) continue;
      m.runs.others = others.share();
      if (t.settings[i].plain) plain = value_of(m.median(), t.in);
      m.gain = plain / value_of(m.median(), t.in);
      progress.show("");
      done(t.settings[i], m);
    }
  return out;
}

Facts facts_of(const EngineSetup& setup, bool speed) {
  auto engine = setup.start();
  Facts facts{engine_text(*engine), engine->max_context(), engine->model().layout().bytes_per_token()};
  if (speed) facts.requests_per_s = double(crowd().size()) / run_load(*engine, crowd(), {}, 999).seconds;
  return facts;
}

Json row_json(const Technique& t, const Setting& s, const Measurement& m) {
  const Outcome& o = m.median();
  return {{"technique", t.name},
          {"workload", s.name},
          {"seconds", o.seconds},
          {"best_seconds", m.runs.best()},
          {"spread", m.runs.spread() ? Json(*m.runs.spread()) : Json()},
          {"repeat", m.runs.seconds.size()},
          {"tokens_per_s", o.tokens_per_s()},
          {"plain", s.plain},
          {"gain", m.gain},
          {"gain_in", t.in == In::seconds ? "seconds"
                      : t.in == In::gap   ? "longest_gap_s"
                                          : "e2e_s"},
          {"computed_tokens", o.computed},
          {"bytes", o.bytes},
          {"flops", o.flops},
          {"attention_flops", o.attention_flops},
          {"ttft_s", percentile(o.ttft_s, 0.5)},
          {"e2e_s", percentile(o.e2e_s, 0.5)},
          {"longest_gap_s", o.gap_s},
          {"running_at_most", o.running},
          {"preemptions", o.preemptions},
          {"swapped_units", o.swapped},
          {"internal_waste", o.internal_waste},
          {"external_waste", o.external_waste},
          {"others_share", m.runs.others}};
}

void print_legend(const Facts& facts) {
  fmt::print(
      "{}, unless a row says otherwise. Each technique beside its plain form, in turns, the median run of each.\n"
      "  gain: how many times less time than the plain form above it; where it is not all of the time, the heading says of what\n"
      "  spread: how far the median run lies above the best; computed: rows that passed through the model, padding among them\n"
      "  TTFT, end: seconds to the first token of an answer and to its end, medians; gap: the longest that an answer stood still\n"
      "  at once: most answers side by side; preempt: how often one gave way; waste: of the memory for keys and values, what\n"
      "  sequences hold and have not filled + what is free in holes too short to use, means over the steps\n",
      facts.engine);
}

void print_head(const Technique& t) {
  fmt::print("\n{}: {}\n", t.name, t.says);
  if (t.refused.empty())
    fmt::print("  {:<24} {:>8} {:>6} {:>9} {:>8} {:>9} {:>8} {:>8} {:>8} {:>7} {:>7} {:>11}\n", "", "seconds", "spread", "tok/s", "gain",
               "computed", "TTFT s", "end s", "gap s", "at once", "preempt", "waste");
  std::fflush(stdout);
}

void print_row(const Setting& s, const Measurement& m) {
  const Outcome& o = m.median();
  auto measured = [&](double value, int decimals) { return about(fmt::format("{:.{}f}", value, decimals), m.runs.busy()); };
  const std::string waste = fmt::format("{:.0f} % + {:.0f} %", 100 * o.internal_waste, 100 * o.external_waste);
  const std::string gain = s.plain ? "plain" : about(fmt::format("{:.2f}×", m.gain), m.runs.busy());
  fmt::print("  {:<24} {:>8} {:>6} {:>9} {:>8} {:>9} {:>8} {:>8} {:>8} {:>7} {:>7} {:>11}\n", s.name, measured(o.seconds, 3),
             m.runs.spread_text(), measured(o.tokens_per_s(), 1), gain, grouped(o.computed), measured(percentile(o.ttft_s, 0.5), 3),
             measured(percentile(o.e2e_s, 0.5), 3), measured(o.gap_s, 3), o.running, o.preemptions, waste);
  std::fflush(stdout);
}

// The exponent of growth from one outcome to another of twice the length.
double power(double shorter, double longer) { return std::log2(longer / shorter); }

Json growth_json(const Outcome& shorter, const Outcome& longer) {
  Json j{{"seconds", power(shorter.seconds, longer.seconds)},
         {"flops", power(shorter.flops, longer.flops)},
         {"attention_flops", power(shorter.attention_flops, longer.attention_flops)}};
  if (shorter.attention_s > 0) j["attention_seconds"] = power(shorter.attention_s, longer.attention_s);
  return j;
}

// Time and attention's share of it at every length, with the factor over half the length and that of the flops.
void print_growth(const Technique& t, const std::vector<Measurement>& m) {
  fmt::print(
      "  Growth with the length T. Linear layers: twice the time for twice T with the cache, 4 times without. Attention: 4 times (T^2) "
      "with it, 8 times (T^3) without.\n");
  fmt::print("  {:<24} {:>9} {:>9} {:>9} | {:>12} {:>9} {:>9}\n", "", "seconds", "doubled", "its flops", "attention ms", "doubled",
             "its flops");
  for (size_t form : {size_t(0), size_t(1)})
    for (size_t i = form; i < m.size(); i += 2) {
      const Outcome& o = m[i].median();
      const bool busy = m[i].runs.busy();
      auto times = [&](auto of) { return i < 2 ? "" : fmt::format("{:.2f}×", of(o) / of(m[i - 2].median())); };
      auto measured_times = [&](auto of) { return i < 2 ? "" : about(times(of), busy); };
      fmt::print("  {:<24} {:>9} {:>9} {:>9} | {:>12} {:>9} {:>9}\n", t.settings[i].name, about(fmt::format("{:.4f}", o.seconds), busy),
                 measured_times([](auto& x) { return x.seconds; }), times([](auto& x) { return x.flops; }),
                 about(fmt::format("{:.2f}", 1e3 * o.attention_s), busy), measured_times([](auto& x) { return x.attention_s; }),
                 times([](auto& x) { return x.attention_flops; }));
    }
}

}  // namespace

std::vector<std::string> technique_names() {
  std::vector<std::string> names;
  for (const Entry& e : entries) names.push_back(e.name);
  return names;
}

int bench_techniques(const EngineSetup& base, const std::vector<std::string>& chosen, int repeat, bool json) {
  const bool all = std::ranges::count(chosen, "all") > 0;
  auto is_chosen = [&](const char* name) { return all || std::ranges::count(chosen, name); };
  double others = 0;
  Json rows = Json::array();
  const Facts facts = facts_of(base, is_chosen("arrivals"));
  std::vector<Technique> techniques;
  for (const Entry& entry : entries) {
    if (!is_chosen(entry.name)) continue;
    Technique& t = techniques.emplace_back(entry.make(base, facts));
    if (entry.of_tokens && !facts.bytes_per_token) t.refused = "it is about state that grows with every token, and this model keeps none";
    check(all || t.refused.empty(), "{} cannot be measured: {}", t.name, t.refused);
  }
  if (!json) print_legend(facts);
  for (Technique& t : techniques) {
    if (!json) print_head(t);
    std::vector<Measurement> measured;
    try {
      check(t.refused.empty(), "{}", t.refused);
      t.settings[0].plain = true;
      measured = measure(t, repeat, [&](const Setting& s, const Measurement& m) {
        rows.push_back(row_json(t, s, m));
        others = std::max(others, m.runs.others);
        if (!json) print_row(s, m);
      });
    } catch (const Error& e) {  // e.g. this model is too small for its load
      if (!all) throw;
      rows.push_back({{"technique", t.name}, {"error", e.what()}});
      if (!json) fmt::print("  not measured: {}\n", e.what());
      continue;
    }
    for (size_t i = 0; t.grows && i < measured.size(); i++) {
      Json& row = rows[rows.size() - measured.size() + i];
      row["attention_seconds"] = measured[i].median().attention_s;
      if (i >= 2) row["growth"] = growth_json(measured[i - 2].median(), measured[i].median());
    }
    if (t.grows && !json) print_growth(t, measured);
  }
  if (json) fmt::print("{}\n", rows.dump());
  warn_if_busy(others, json, "times and gains");
  return 0;
}

}  // namespace mr
