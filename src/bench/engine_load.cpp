// millrace bench --load: the load that bench --url sends to a server, on the engine in this process, with this machine's
// limits. The limit is that of exactly the steps that the scheduler planned.
#include <algorithm>

#include "analyze/report.h"
#include "bench/load.h"
#include "bench/offline_load.h"
#include "core/error.h"

namespace mr {

namespace {

struct MixRow {
  int streams = 0;  // 0: all at once
  double rate = 0;  // 0: no arrivals
  size_t n_jobs = 0;
  LoadOutcome outcome;  // of the median run
  Measured m;
};

std::vector<Job> jobs_of(const Workload& w, int n, const Tokenizer* tokenizer) {
  std::vector<Job> jobs;
  for (uint32_t i = 0; i < uint32_t(n); i++) {
    Job job{.answer = answer_length(w, i)};
    const LoadItem* item = item_of(w, i);
    if (item && !item->text.empty()) {
      check(tokenizer, "this model comes without a tokenizer: give the prompts as token ids");
      job.tokens = tokenizer->encode(item->text, true);
    } else {
      job.tokens = item && !item->tokens.empty() ? item->tokens : made_up_tokens(w, i);
    }
    job.prompt = int(job.tokens.size());
    jobs.push_back(std::move(job));
  }
  return jobs;
}

Json row_json(const LoadOptions& f, const MixRow& r) {
  Json j{{"workload", "load"},
         {"requests", r.n_jobs},
         {"streams", r.streams ? Json(r.streams) : Json()},
         {"rate", r.rate > 0 ? Json(r.rate) : Json()},
         {"prompt_length", f.file.empty() ? Json(f.prompt_tokens) : Json()},
         {"output_length", f.file.empty() ? Json(f.max_tokens) : Json()},
         {"load_file", f.file.empty() ? Json() : Json(f.file)},
         {"shared_prefix", f.shared_prefix},
         {"seed", f.seed},
         {"prompt_tokens", r.outcome.prompt},
         {"output_tokens", r.outcome.generated},
         {"computed_tokens", r.outcome.computed},
         {"preemptions", r.outcome.preemptions},
         {"total_tokens_per_s", double(r.outcome.prompt + r.outcome.generated) / r.m.median()},
         {"ttft_s", spread_json(spread_of(r.outcome.ttft_s))},
         {"e2e_s", spread_json(spread_of(r.outcome.e2e_s))}};
  j.update(measured_json(r.m, double(r.outcome.generated)));
  return j;
}

void print_head(const LoadOptions& f, Engine& engine) {
  fmt::print("{}, at most {} sequences and {} rows a step; {}\n", engine_text(engine), engine.max_seqs(), engine.limits().max_batch_tokens,
             f.file.empty() ? fmt::format("prompts of {}, answers of {} tokens, seed {}", f.prompt_tokens, f.max_tokens, f.seed)
                            : fmt::format("the requests of {}", f.file));
  fmt::print("  {:>8} {:>8} {:>8} {:>8} {:>9} {:>10} {:>8} {:>9} {:>6} {:>8} {:>10} {:>12} {:>11} {:>6}  {}\n", "streams", "requests",
             "prompt", "output", "out tok/s", "all tok/s", "best s", "median s", "spread", "TTFT p50", "bytes", "flops", "limit out/s",
             "share", "bound by");
  std::fflush(stdout);
}

void print_row(const MixRow& r) {
  const LoadOutcome& o = r.outcome;
  auto measured = [&](double value, int decimals) { return about(fmt::format("{:.{}f}", value, decimals), r.m.busy()); };
  std::string pace = r.rate > 0 ? fmt::format("{:g}/s", r.rate) : r.streams ? fmt::format("{}", r.streams) : "all";
  fmt::print("  {:>8} {:>8} {:>8} {:>8} {:>9} {:>10} {:>8} {:>9} {:>6} {:>8} {:>10} {:>12} {:>11} {:>6}  {}\n", pace, r.n_jobs, o.prompt,
             o.generated, measured(double(o.generated) / r.m.median(), 1), measured(double(o.prompt + o.generated) / r.m.median(), 1),
             measured(r.m.best(), 3), measured(r.m.median(), 3), r.m.spread_text(), measured(percentile(o.ttft_s, 0.5), 3),
             with_unit(r.m.limit.bytes, "B"), with_unit(r.m.limit.flops, "FLOP"), measured(double(o.generated) / r.m.limit.seconds, 1),
             share_text(r.m.share(), r.m.busy()), bound_text(r.m));
  std::fflush(stdout);
}

MixRow measure_row(Engine& engine, std::vector<StepWork>& log, LimitProbe& probe, const StepCosts& costs, const Patience& patience,
                   const std::vector<Job>& jobs, const Pace& pace, unsigned& seed) {
  MixRow row{.streams = pace.streams, .n_jobs = jobs.size()};
  std::vector<LoadOutcome> outcomes;
  row.m = measure(fmt::format("{} requests", jobs.size()), patience, probe, costs, [&] {
    log.clear();
    LoadOutcome outcome = run_load(engine, jobs, pace, seed++);
    outcomes.push_back(outcome);
    return Run{outcome.seconds, log};
  });
  row.outcome = row.m.median_of(outcomes);
  return row;
}

}  // namespace

int load_engine(const LoadOptions& f, Workload work, EngineSetup setup, const Patience& patience, bool json) {
  std::vector<StepWork> log;
  setup.options.on_step = [&log](const StepWork& work) { log.push_back(work); };
  auto engine = setup.start();
  work.vocab = engine->model().spec().vocab;
  StepCosts costs(*engine);
  LimitProbe probe(*engine, setup.isa());
  std::vector<MixRow> rows;
  double others = 0;
  unsigned seed = 0;  // a new one for each run: no run finds an earlier one's prompts in the prefix cache
  auto add = [&](int streams, double rate) {
    std::vector<Job> jobs = jobs_of(work, f.n_requests(work, streams, rate), engine->tokenizer());
    Pace pace{streams};
    if (rate > 0) pace.arrivals = poisson_arrivals(rate, jobs.size(), f.seed);
    MixRow& row = rows.emplace_back(measure_row(*engine, log, probe, costs, patience, jobs, pace, seed));
    row.rate = rate;
    others = std::max(others, row.m.others);
    if (!json) print_row(row);
  };
  if (!json) print_head(f, *engine);
  for (double rate : f.rates) add(0, rate);
  if (f.rates.empty())
    for (int streams : f.streams.empty() ? std::vector<int>{0} : f.streams) add(streams, 0);

  if (json) {
    Json out = Json::array();
    for (const MixRow& r : rows) out.push_back(row_json(f, r));
    fmt::print("{}\n", out.dump());
  } else {
    fmt::print("  tok/s, share and TTFT are of the median run; best s is the fastest of all\n");
    if (std::ranges::any_of(rows, [](auto& r) { return r.m.has_moved(); })) fmt::print("  {}", moved_text());
  }
  warn_if_busy(others, json);
  return 0;
}

}  // namespace mr
