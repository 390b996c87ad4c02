// Measurement loop of the benchmarks: repeats runs, with probes of the machine's limits in between, until they agree or the budget is
// spent. The analysis counts bytes and flops over the steps that the engine really ran.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "analyze/program_costs.h"
#include "analyze/roofline.h"
#include "core/json.h"
#include "core/other_programs.h"
#include "engine/engine.h"

namespace mr {

// What is measured.
struct EngineSetup {
  std::filesystem::path model;
  EngineOptions options;

  std::unique_ptr<Engine> start() const;
  Isa isa() const { return options.isa.value_or(best_isa()); }
};

// When to stop repeating.
struct Patience {
  int repeat = 0;           // runs; 0: until they agree
  double spread = 0.03;     // they agree when the median of at least 3 is at most this far above the best, relatively
  std::string budget;       // as given: "30s"
  double budget_s() const;  // for one row
};

Chip median_of(const std::vector<Chip>&);               // of each rate; at least one
size_t median_run(const std::vector<double>& seconds);  // index; of an even number the slower of the middle two

// The machine's limits at the moment: speed of reading the model's own weights, and of products; or what the backend reports
// (Backend::rates).
class LimitProbe {
 public:
  LimitProbe(Engine&, Isa);
  void take(double budget_s = 0.05);
  void forget() { taken_.clear(); }
  const std::vector<Chip>& taken() const { return taken_; }  // in turn
  Chip median() const { return median_of(taken_); }          // of all probes since forget()
  std::string read_text() const;                             // ", memory's by reading the model's 96.44 MB"; empty on a GPU

 private:
  Engine& engine_;
  Isa isa_;
  std::vector<Chip> taken_;
};

// Costs of steps, by the recorded program. On a CPU activations stay in caches: only weights and state count as bytes.
class StepCosts {
 public:
  explicit StepCosts(const Engine&);
  std::vector<Operation> operations(const StepWork&) const;
  StepCost of(const StepWork&, const Chip&) const;
  StepCost of(const std::vector<StepWork>&, const Chip&) const;  // of all together
  const Storage& storage() const { return storage_; }

 private:
  ProgramCosts program_;
  Storage storage_;
};

std::string engine_text(Engine&);                                                    // "model.gguf, 2 threads, vnni"
void warn_if_busy(double share, bool json, const char* what = "speeds and limits");  // on stderr; share: the largest of all rows
std::string share_text(double, bool busy);                                           // "77%", or "~77%" if measured on a busy machine

struct Run {
  double seconds = 0;
  std::vector<StepWork> steps;
};

inline constexpr double moved_share = 0.15;  // a limit that changed by more during a row counts as moved

struct Measured {
  std::vector<double> seconds;  // of each run
  std::vector<StepWork> steps;  // of the median run
  StepCost limit;               // of these steps, at the median of the limits probed before, between and after the runs
  Chip chip;                    // those limits
  std::vector<double> rates;    // bytes or flops a second, whichever binds, of each probe in turn
  double others = 0;            // share of the processors used by other programs meanwhile

  bool busy() const { return others > busy_share; }
  double best() const;
  double median() const { return seconds[median_run(seconds)]; }
  std::optional<double> spread() const;  // (median - best) / best; none for a single run
  std::string spread_text() const;       // "1.3%", or empty
  // Medians of both: a shared machine's memory speed varies, and the best of many short probes must not be compared with the best of a
  // few long runs.
  double share() const { return limit.seconds / median(); }
  // The item of the median run; the first run may not have counted.
  template <class T>
  const T& median_of(const std::vector<T>& of_runs) const {
    return of_runs[of_runs.size() - seconds.size() + median_run(seconds)];
  }
  double moved() const;  // range of the rates, as a share of their median
  bool has_moved() const { return moved() > moved_share; }
};

// "memory at 57.10 GB/s": the bound and its measured limit; if that moved, followed by " (41.20 to 61.30 GB/s)".
std::string bound_text(const Measured&);
std::string moved_text();  // explains the brackets below a table

bool is_enough(const Measured&, const Patience&, double spent_s);

// The first run is a warm-up, unless it takes a good part of the budget. Shows progress of `what` on a terminal.
Measured measure(const std::string& what, const Patience&, LimitProbe&, const StepCosts&, const std::function<Run()>& once);

// Common members of all benchmarks' rows: seconds, bytes, flops, limits and shares, for this many tokens.
Json measured_json(const Measured&, double tokens);

}  // namespace mr
