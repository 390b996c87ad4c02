#include "bench/measure.h"

#include <algorithm>
#include <numeric>

#include "analyze/report.h"
#include "analyze/subject.h"
#include "backend/cpu/probe.h"
#include "core/error.h"
#include "core/progress.h"

namespace mr {

static constexpr double default_budget_s = 5;

std::unique_ptr<Engine> EngineSetup::start() const {
  auto engine = Engine::create(model, options);
  if (options.progress) options.progress(1, 1);
  return engine;
}

// "30", "30s", "2m"; 0: invalid.
static double seconds_of(const std::string& text) {
  size_t used = 0;
  double number = 0;
  try {
    number = std::stod(text, &used);
  } catch (const std::exception&) {
  }
  std::string unit = text.substr(used);
  double scale = unit.empty() || unit == "s" ? 1 : unit == "m" ? 60 : 0;
  return number > 0 && number < 1e6 ? number * scale : 0;
}

double Patience::budget_s() const { return budget.empty() ? default_budget_s : seconds_of(budget); }

LimitProbe::LimitProbe(Engine& engine, Isa isa) : engine_(engine), isa_(isa) {}

void LimitProbe::take(double budget_s) {
  Chip& chip = taken_.emplace_back();
  if (auto rates = engine_.backend().rates()) {
    chip.bandwidth = rates->bytes;
    chip.bf16 = rates->flops;
    return;
  }
  ThreadPool& pool = engine_.backend().pool();
  chip.bandwidth = read_bandwidth(engine_.model().weights(), isa_, pool, budget_s);
  chip.quantized = chip.int8 = quantized_rate(isa_, pool);
  // On AMX, bf16 weights use the same tiles as quantized ones.
  const bool tiles = isa_ == Isa::amx && storage_of(engine_.model().program()).block_name == "bf16";
  chip.bf16 = tiles ? chip.quantized : float_rate(isa_, pool);
}

std::string LimitProbe::read_text() const {
  double bytes = 0;
  for (std::span<const std::byte> part : engine_.model().weights()) bytes += double(part.size());
  return engine_.backend().rates() ? "" : fmt::format(", memory's by reading the model's {}", with_unit(bytes, "B"));
}

static double median_of(std::vector<double> values) {
  std::ranges::sort(values);
  size_t n = values.size();
  return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

size_t median_run(const std::vector<double>& seconds) {
  std::vector<size_t> order(seconds.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, {}, [&](size_t i) { return seconds[i]; });
  return order[order.size() / 2];
}

Chip median_of(const std::vector<Chip>& taken) {
  Chip chip;
  for (double Chip::*rate : {&Chip::bandwidth, &Chip::bf16, &Chip::quantized, &Chip::int8}) {
    std::vector<double> values;
    for (const Chip& c : taken) values.push_back(c.*rate);
    chip.*rate = median_of(std::move(values));
  }
  return chip;
}

StepCosts::StepCosts(const Engine& engine) : program_(engine.model().program()), storage_(storage_of(engine.model().program())) {
  store_keys_as(storage_, kv_format(engine.model().state_types().kv).name);
  storage_.scan = engine.model().state_types().scan;
  storage_.activation = 0;
}

static std::vector<Phase> phases_of(const StepWork& step) {
  std::vector<Phase> phases;
  for (const StepWork::Part& p : step.parts) phases.push_back({1, double(p.rows), double(p.context), double(p.outputs)});
  return phases;
}

std::vector<Operation> StepCosts::operations(const StepWork& step) const { return program_.operations(storage_, phases_of(step)); }

StepCost StepCosts::of(const StepWork& step, const Chip& chip) const { return step_cost(operations(step), {chip}); }

StepCost StepCosts::of(const std::vector<StepWork>& steps, const Chip& chip) const {
  StepCost sum;
  double by_bound[3]{};
  for (const StepWork& step : steps) {
    StepCost c = of(step, chip);
    sum.seconds += c.seconds;
    sum.bytes += c.bytes;
    sum.flops += c.flops;
    by_bound[size_t(c.bound)] += c.seconds;
  }
  sum.bound = Roof(std::ranges::max_element(by_bound) - by_bound);
  return sum;
}

std::string engine_text(Engine& engine) {
  const int threads = engine.backend().pool().size();
  return fmt::format("{}, {} thread{}, {}", engine.checkpoint().path().filename().string(), threads, threads == 1 ? "" : "s",
                     engine.backend().name());
}

void warn_if_busy(double share, bool json, const char* what) {
  std::fflush(stdout);  // keeps the order with stderr
  if (share > busy_share)
    fmt::print(stderr,
               "millrace: other programs used up to {:.0f} % of the processors meanwhile: in rows {} the {} are those of a busy machine\n",
               100 * share, json ? fmt::format("with others_share above {:g}", busy_share) : "with ~", what);
}

std::string share_text(double share, bool busy) { return about(fmt::format("{:.0f}%", 100 * share), busy); }

std::string Measured::spread_text() const { return spread() ? fmt::format("{:.1f}%", 100 * *spread()) : ""; }

double Measured::moved() const {
  const auto [low, high] = std::ranges::minmax(rates);
  return (high - low) / mr::median_of(rates);
}

std::string bound_text(const Measured& m) {
  const char* unit = m.limit.bound == Roof::memory ? "B/s" : "FLOP/s";
  std::string text = fmt::format("{} at {}", name_of(m.limit.bound), about(with_unit(median_of(m.rates), unit), m.busy()));
  const auto [low, high] = std::ranges::minmax(m.rates);
  if (m.has_moved()) text += fmt::format(" ({} to {})", with_unit(low, unit), with_unit(high, unit));
  return text;
}

std::string moved_text() {
  return fmt::format(
      "(a to b): the limit itself moved by more than {:.0f} % between the probes before, between and after the runs of the row; the share "
      "is "
      "of its median\n",
      100 * moved_share);
}

double Measured::best() const { return *std::ranges::min_element(seconds); }

std::optional<double> Measured::spread() const {
  if (seconds.size() < 2) return {};
  return (median() - best()) / best();
}

bool is_enough(const Measured& m, const Patience& p, double spent_s) {
  if (p.repeat > 0) return int(m.seconds.size()) >= p.repeat;
  return spent_s >= p.budget_s() || (m.seconds.size() >= 3 && m.spread() <= p.spread);
}

Measured measure(const std::string& what, const Patience& patience, LimitProbe& probe, const StepCosts& costs,
                 const std::function<Run()>& once) {
  Measured m;
  std::vector<std::vector<StepWork>> steps;
  auto take = [&](Run run) {
    m.seconds.push_back(run.seconds);
    steps.push_back(std::move(run.steps));
  };
  OtherPrograms others;
  const Clock::time_point begin = Clock::now();
  auto spent = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
  Progress progress;
  progress.show(what);
  probe.forget();
  probe.take();
  Run first = once();
  if (patience.repeat == 0 && spent() > patience.budget_s() / 3) take(std::move(first));
  do {
    probe.take();
    take(once());
    const size_t n = m.seconds.size();
    progress.show(patience.repeat > 0 ? fmt::format("{}: run {} of {}", what, n, patience.repeat)
                                      : fmt::format("{}: run {}, {:.0f} s of at most {:.0f}", what, n, spent(), patience.budget_s()));
  } while (!is_enough(m, patience, spent()));
  probe.take();
  m.others = others.share();
  m.chip = probe.median();
  m.steps = std::move(steps[median_run(m.seconds)]);
  m.limit = costs.of(m.steps, m.chip);
  for (const Chip& c : probe.taken())
    m.rates.push_back(m.limit.bound == Roof::memory ? c.bandwidth : product_rate(c, costs.storage().block_product));
  return m;
}

Json measured_json(const Measured& m, double tokens) {
  return {{"tokens_per_s", tokens / m.median()},
          {"best_tokens_per_s", tokens / m.best()},
          {"seconds", m.median()},
          {"best_seconds", m.best()},
          {"spread", m.spread() ? Json(*m.spread()) : Json()},
          {"repeat", m.seconds.size()},
          {"steps", m.steps.size()},
          {"bytes", m.limit.bytes},
          {"flops", m.limit.flops},
          {"bound", name_of(m.limit.bound)},
          {"limit_seconds", m.limit.seconds},
          {"limit_tokens_per_s", tokens / m.limit.seconds},
          {"share_of_limit", m.share()},
          {"bytes_per_s_limit", m.chip.bandwidth},
          {"float_flops_per_s_limit", m.chip.bf16},
          {"quantized_flops_per_s_limit", m.chip.quantized},
          {"limit_rates", m.rates},
          {"limit_moved", m.moved()},
          {"others_share", m.others}};
}

}  // namespace mr
