// millrace bench --techniques: what each technique gains over its plain form, both measured here, one after the other, on the
// same made-up load. The first line of a technique is the plain form.
#include "cli/bench_techniques.h"

#include <algorithm>
#include <chrono>
#include <random>

#include "core/config.h"
#include "core/error.h"

namespace mr {

namespace {

// Requests that come together; `late` ones after eight steps, when the others have begun to answer.
struct Job {
  int prompt = 0, answer = 0;
  int shared = 0;  // of the prompt's tokens: the same in every job
  int n = 1;
  bool late = false;
};

struct Outcome {
  double seconds = 1e30;  // of the best repetition, like all that follows
  int64_t generated = 0, computed = 0, preemptions = 0, swapped = 0;
  double ttft_s = 0;                              // median
  double gap_s = 0;                               // the longest that an answer stood still after it had begun
  int running = 0;                                // at once, at most
  double internal_waste = 0, external_waste = 0;  // means over the steps

  double tokens_per_s() const { return double(generated) / seconds; }
};

struct Setting {
  std::string name;
  EngineFlags flags;
  std::vector<Job> jobs;
  bool plain = false;  // what the settings after it are compared with
};

struct Technique {
  std::string name, says;
  std::vector<Setting> settings;
};

struct Stream {
  double first_s = 0, last_s = 0, gap_s = 0;
};

class Load {
 public:
  Load(Engine& engine, std::vector<Job> jobs, unsigned seed) : engine_(engine), jobs_(std::move(jobs)), rng_(seed) {
    for (int i = 0; i < 1 << 16; i++) shared_.push_back(token());
  }

  Outcome run() {
    Stats before = engine_.stats();
    int64_t swapped = engine_.state_stats().n_swapped_out;
    begin_ = Clock::now();
    for (const Job& job : jobs_)
      if (!job.late) submit(job);
    Outcome out;
    for (int n_steps = 1; engine_.step(); n_steps++) {
      Stats now = engine_.stats();
      out.running = std::max(out.running, now.running);
      out.internal_waste += now.internal_waste;
      out.external_waste += now.external_waste;
      for (const Job& job : jobs_)
        if (job.late && n_steps == 8) submit(job);
    }
    out.seconds = seconds();
    check(error_.empty(), "{}", error_);
    Stats after = engine_.stats();
    double steps = double(std::max<int64_t>(1, after.steps - before.steps));
    out.internal_waste /= steps;
    out.external_waste /= steps;
    out.generated = after.generated_tokens - before.generated_tokens;
    out.computed = after.computed_tokens - before.computed_tokens;
    out.preemptions = after.preemptions - before.preemptions;
    out.swapped = engine_.state_stats().n_swapped_out - swapped;
    std::ranges::sort(streams_, {}, &Stream::first_s);
    out.ttft_s = streams_[streams_.size() / 2].first_s;
    for (const Stream& s : streams_) out.gap_s = std::max(out.gap_s, s.gap_s);
    return out;
  }

 private:
  int32_t token() { return int32_t(rng_() % unsigned(engine_.model().spec().vocab)); }
  double seconds() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }

  void submit(const Job& job) {
    Request r;
    r.prompt.assign(shared_.begin(), shared_.begin() + job.shared);
    while (int(r.prompt.size()) < job.prompt) r.prompt.push_back(token());
    r.n = job.n;
    r.sampling.seed = rng_();
    r.sampling.ignore_eos = true;
    r.sampling.max_tokens = job.answer;
    const size_t first = streams_.size();
    const double came = seconds();
    streams_.resize(first + size_t(job.n));
    engine_.submit(std::move(r), [this, first, came](const TokenEvent& e) {
      if (e.finish == Finish::error) error_ = e.error;
      if (e.tokens.empty()) return;
      Stream& s = streams_[first + size_t(e.choice)];
      double now = seconds();
      if (s.last_s > 0) s.gap_s = std::max(s.gap_s, now - s.last_s);
      if (s.last_s == 0) s.first_s = now - came;
      s.last_s = now;
    });
  }

  Engine& engine_;
  std::vector<Job> jobs_;
  std::mt19937 rng_;
  std::vector<int32_t> shared_;
  std::vector<Stream> streams_;
  std::string error_;
  Clock::time_point begin_;
};

Outcome measure(const Setting& setting, int repeat) {
  EngineFlags flags = setting.flags;
  auto engine = start_engine(flags);
  Load(*engine, {{16, 4}}, 999).run();  // touches memory that is new
  Outcome best;
  for (int i = 0; i < repeat; i++) {
    Outcome out = Load(*engine, setting.jobs, unsigned(i)).run();
    if (out.seconds < best.seconds) best = out;
  }
  return best;
}

// Lengths as users have them: many short, a few long.
std::vector<Job> mixed_load(int n, int longest_answer) {
  std::mt19937 rng(7);
  std::vector<Job> jobs;
  for (int i = 0; i < n; i++) {
    double u = double(rng() % 1000) / 1000, v = double(rng() % 1000) / 1000;
    jobs.push_back({8 + int(120 * u * u), 4 + int(double(longest_answer - 4) * v * v)});
  }
  return jobs;
}

// What the loads are made for.
struct Facts {
  int context = 2048;
  int64_t bytes_per_token = 1;
};

// The whole list. `base` are the user's own options; each technique changes what it is about.
std::vector<Technique> all_techniques(const EngineFlags& base, const Facts& model) {
  auto with = [&](auto change) {
    EngineFlags flags = base;
    change(flags);
    return flags;
  };
  auto memory_for = [&](int64_t tokens) { return fmt::format("{}", tokens * model.bytes_per_token); };
  const int longest = std::min(model.context, 2048);
  std::vector<Technique> all;

  Technique cache{"kv-cache",
                  "keys and values are kept; without them every token computes its whole context: twice the length, four times the rows",
                  {}};
  for (int n : {16, 32, 64, 128}) {
    std::vector<Job> one{{n, n}};
    cache.settings.push_back({fmt::format("none, {} + {} tokens", n, n), with([](auto& f) { f.no_kv_cache = true; }), one, true});
    cache.settings.push_back({fmt::format("kept, {} + {} tokens", n, n), base, one});
  }
  all.push_back(cache);

  std::vector<Job> crowd = mixed_load(48, 128);
  all.push_back({"batching",
                 "48 requests of unequal length: rows join and leave at every step, none is padded",
                 {{"one at a time", with([](auto& f) { f.options.max_seqs = 1; }), crowd},
                  {"static", with([](auto& f) { f.batching = "static"; }), crowd},
                  {"continuous", base, crowd}}});

  auto few_tokens = [&](EngineFlags& f) {
    f.options.max_context = longest;
    f.memory = memory_for(2 * longest + 64);
  };
  all.push_back({"paging",
                 fmt::format("the same load in memory for two sequences of {} tokens", longest),
                 {{"contiguous", with([&](auto& f) { few_tokens(f), f.state = "contiguous"; }), crowd},
                  {"paged", with([&](auto& f) { few_tokens(f); }), crowd}}});

  std::vector<Job> beside{{16, 96}, {16, 96}, {16, 96}, {16, 96}, {std::min(1024, longest - 8), 4, 0, 1, true}};
  all.push_back({"chunked-prefill",
                 "four answers are written when a long prompt comes: how long do they stand still?",
                 {{"whole prompt", with([](auto& f) { f.options.max_batch_tokens = 2048; }), beside},
                  {"chunks of 128", with([](auto& f) { f.options.max_prompt_tokens = 128; }), beside},
                  {"chunks of 32", with([](auto& f) { f.options.max_prompt_tokens = 32; }), beside}}});

  std::vector<Job> begin_alike(16, Job{544, 16, 512});
  all.push_back({"prefix-cache",
                 "16 requests whose prompts share 512 tokens of 544",
                 {{"none", with([](auto& f) { f.no_prefix_cache = true; }), begin_alike}, {"shared", base, begin_alike}}});

  std::vector<Job> eight(8, Job{512, 16, 512});
  all.push_back({"copy-on-write",
                 "8 answers to one prompt of 512 tokens",
                 {{"8 requests", with([](auto& f) { f.no_prefix_cache = true; }), eight},
                  {"n = 8", with([](auto& f) { f.no_prefix_cache = true; }), {{512, 16, 0, 8}}}}});

  std::vector<Job> greedy_load = mixed_load(32, 256);
  auto tight = [&](EngineFlags& f, const char* victim, bool swap) {
    f.options.max_context = 512;
    f.memory = memory_for(1536);
    f.no_prefix_cache = true;
    f.victim = victim;
    if (swap) f.swap = memory_for(4096);
  };
  all.push_back({"preemption",
                 "32 requests in memory for 1,536 tokens, no prefix cache: who gives way, and is its state computed anew or swapped?",
                 {{"recompute, newest", with([&](auto& f) { tight(f, "newest", false); }), greedy_load},
                  {"recompute, largest", with([&](auto& f) { tight(f, "largest", false); }), greedy_load},
                  {"swap, newest", with([&](auto& f) { tight(f, "newest", true); }), greedy_load},
                  {"swap, largest", with([&](auto& f) { tight(f, "largest", true); }), greedy_load}}});

  all.push_back({"overlap",
                 "the next step is planned, and the last one's news told, while a step runs",
                 {{"one after the other", with([](auto& f) { f.no_overlap = true; }), crowd}, {"beside it", base, crowd}}});

  Technique threads{"threads", "the same load on more threads", {}};
  for (int n = 1; n <= std::max(1, default_threads()); n *= 2)
    threads.settings.push_back({fmt::format("{}", n), with([&](auto& f) { f.options.threads = n; }), crowd});
  all.push_back(threads);

  Technique sets{"instruction-sets", "the same load with each instruction set that this machine has", {}};
  for (Isa isa : available_isas())
    if (isa != Isa::scalar) sets.settings.push_back({std::string(name_of(isa)), with([&](auto& f) { f.isa = name_of(isa); }), crowd});
  all.push_back(sets);
  for (Technique& t : all) t.settings[0].plain = true;
  return all;
}

Json row_json(const Technique& t, const Setting& s, const Outcome& o, double gain) {
  return {{"technique", t.name},
          {"workload", s.name},
          {"seconds", o.seconds},
          {"tokens_per_s", o.tokens_per_s()},
          {"gain", gain},
          {"computed_tokens", o.computed},
          {"ttft_s", o.ttft_s},
          {"longest_gap_s", o.gap_s},
          {"running_at_most", o.running},
          {"preemptions", o.preemptions},
          {"swapped_units", o.swapped},
          {"internal_waste", o.internal_waste},
          {"external_waste", o.external_waste}};
}

void print_row(const Setting& s, const Outcome& o, double gain) {
  std::string waste = fmt::format("{:.0f} % + {:.0f} %", 100 * o.internal_waste, 100 * o.external_waste);
  fmt::print("  {:<24} {:>8.3f} {:>9.1f} {:>6.2f} {:>9} {:>8.3f} {:>8.3f} {:>7} {:>7} {:>12}\n", s.name, o.seconds, o.tokens_per_s(), gain,
             o.computed, o.ttft_s, o.gap_s, o.running, o.preemptions, waste);
}

Facts facts_of(EngineFlags flags) {
  auto engine = start_engine(flags);
  Facts facts{engine->max_context(), engine->model().layout().bytes_per_token()};
  check(facts.bytes_per_token > 0, "--techniques needs a model with attention: this one keeps no bytes a token");
  return facts;
}

}  // namespace

std::vector<std::string> technique_names() {
  std::vector<std::string> names;
  for (const Technique& t : all_techniques({}, {})) names.push_back(t.name);
  return names;
}

int bench_techniques(const EngineFlags& base, const std::vector<std::string>& chosen, int repeat, bool json) {
  bool every = std::ranges::count(chosen, "all") > 0;
  Json rows = Json::array();
  for (const Technique& t : all_techniques(base, facts_of(base))) {
    if (!every && std::ranges::count(chosen, t.name) == 0) continue;
    if (!json)
      fmt::print("\n{}: {}\n  {:<24} {:>8} {:>9} {:>6} {:>9} {:>8} {:>8} {:>7} {:>7} {:>12}\n", t.name, t.says, "", "seconds", "tok/s",
                 "gain", "computed", "TTFT s", "gap s", "at once", "preempt", "waste in+ex");
    double plain = 0;
    for (const Setting& s : t.settings) {
      Outcome o = measure(s, repeat);
      if (s.plain) plain = o.seconds;
      rows.push_back(row_json(t, s, o, plain / o.seconds));
      if (!json) print_row(s, o, plain / o.seconds);
      std::fflush(stdout);
    }
  }
  if (json) fmt::print("{}\n", rows.dump());
  return 0;
}

}  // namespace mr
