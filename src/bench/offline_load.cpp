#include "bench/offline_load.h"

#include <algorithm>
#include <random>
#include <thread>

#include "core/error.h"

namespace mr {

namespace {

struct Answer {
  double came_s = 0, first_s = 0, last_s = 0, gap_s = 0;
};

class OfflineLoad {
 public:
  OfflineLoad(Engine& engine, const std::vector<Job>& jobs, const Pace& pace, unsigned seed)
      : engine_(engine), jobs_(jobs), pace_(pace), salt_(fmt::format("load {}", seed)), rng_(seed) {
    for (int i = 0; i < 1 << 16; i++) shared_.push_back(token());
  }

  LoadOutcome run() {
    const Stats before = engine_.stats();
    const int64_t swapped = engine_.state_stats().n_swapped_out;
    begin_ = Clock::now();
    LoadOutcome out;
    for (submit_due(); next_ < jobs_.size() || n_open_ > 0; submit_due()) {
      const bool moved = engine_.step(next_ < jobs_.size() && !pace_.arrivals.empty());
      Stats now = engine_.stats();
      n_steps_ = now.steps - before.steps;
      out.running = std::max(out.running, now.running);
      out.internal_waste += now.internal_waste;
      out.external_waste += now.external_waste;
      if (!moved && n_open_ == 0) engine_is_idle_ = true;
      if (!moved && (n_open_ > 0 || next_ < jobs_.size())) wait();
    }
    while (engine_.step()) {
    }
    check(error_.empty(), "{}", error_);
    sum_up(out, before, engine_.stats());
    out.swapped = engine_.state_stats().n_swapped_out - swapped;
    return out;
  }

 private:
  int32_t token() { return int32_t(rng_() % unsigned(engine_.model().spec().vocab)); }
  double seconds() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }

  bool is_due(size_t i) const {
    if (!pace_.arrivals.empty()) return pace_.arrivals[i] <= seconds();
    if (pace_.streams > 0 && n_open_ >= pace_.streams) return false;
    return !jobs_[i].late || n_steps_ >= 8 || engine_is_idle_;
  }

  void submit_due() {
    for (; next_ < jobs_.size() && is_due(next_); next_++) submit(jobs_[next_], pace_.arrivals.empty() ? seconds() : pace_.arrivals[next_]);
  }

  // Nothing to do: the next job has not arrived, or a static batch is not full.
  void wait() const {
    double until = next_ < jobs_.size() && !pace_.arrivals.empty() ? pace_.arrivals[next_] - seconds() : 0;
    std::this_thread::sleep_for(std::chrono::duration<double>(std::clamp(until, 0.0, 0.0005)));
  }

  void submit(const Job& job, double came) {
    Request r;
    r.prompt = job.tokens;
    if (r.prompt.empty()) r.prompt.assign(shared_.begin(), shared_.begin() + job.shared);
    while (job.tokens.empty() && int(r.prompt.size()) < job.prompt) r.prompt.push_back(token());
    n_prompt_ += int64_t(r.prompt.size());
    r.n = job.n;
    r.cache_salt = salt_;
    r.sampling.seed = rng_();
    r.sampling.ignore_eos = true;
    r.sampling.max_tokens = job.answer;
    const size_t first = answers_.size();
    answers_.resize(first + size_t(job.n), {came});
    n_open_ += job.n;
    engine_.submit(std::move(r), [this, first](const TokenEvent& e) {
      if (e.finish != Finish::none) n_open_--;
      if (e.finish == Finish::error) error_ = e.error;
      if (e.tokens.empty()) return;
      Answer& a = answers_[first + size_t(e.choice)];
      double now = seconds();
      if (a.last_s > 0) a.gap_s = std::max(a.gap_s, now - a.last_s);
      if (a.last_s == 0) a.first_s = now;
      a.last_s = now;
    });
  }

  void sum_up(LoadOutcome& out, const Stats& before, const Stats& after) const {
    const double steps = double(std::max<int64_t>(1, after.steps - before.steps));
    out.internal_waste /= steps;
    out.external_waste /= steps;
    out.prompt = n_prompt_;
    out.generated = after.generated_tokens - before.generated_tokens;
    out.computed = after.computed_tokens - before.computed_tokens;
    out.preemptions = after.preemptions - before.preemptions;
    out.seconds = 0;
    for (const Answer& a : answers_) {
      out.seconds = std::max(out.seconds, a.last_s);
      out.ttft_s.push_back(a.first_s - a.came_s);
      out.e2e_s.push_back(a.last_s - a.came_s);
      out.gap_s = std::max(out.gap_s, a.gap_s);
    }
  }

  Engine& engine_;
  const std::vector<Job>& jobs_;
  const Pace& pace_;
  std::string salt_;
  std::mt19937 rng_;
  std::vector<int32_t> shared_;
  std::vector<Answer> answers_;
  size_t next_ = 0;  // next job to submit
  int n_open_ = 0;   // unfinished answers
  int64_t n_steps_ = 0, n_prompt_ = 0;
  bool engine_is_idle_ = false;
  std::string error_;
  Clock::time_point begin_;
};

}  // namespace

LoadOutcome run_load(Engine& engine, const std::vector<Job>& jobs, const Pace& pace, unsigned seed) {
  return OfflineLoad(engine, jobs, pace, seed).run();
}

}  // namespace mr
