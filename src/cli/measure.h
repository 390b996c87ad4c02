// How benchmarks measure: again and again, with the machine's limits probed in between, until the runs agree or the time is
// spent. What a run had to move and compute is counted by the analysis, over the steps that the engine really ran.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <optional>
#include <vector>

#include "analyze/program_costs.h"
#include "analyze/roofline.h"
#include "cli/options.h"
#include "core/json.h"
#include "core/other_programs.h"

namespace mr {

// When to stop repeating.
struct Patience {
  int repeat = 0;           // runs; 0: until they agree
  double spread = 0.03;     // they agree when the median is so little above the best, relative to it, of at least 3
  std::string budget;       // as given: "30s"
  double budget_s() const;  // for one row
};
void add_patience_flags(CLI::App&, Patience&);

Chip median_of(const std::vector<Chip>&);               // each rate by itself; at least one
size_t median_run(const std::vector<double>& seconds);  // which one; of an even number the slower of the two in the middle

// What the machine allows at the moment: the speed of reading the model's own weights, and of products; or what its GPU says.
class LimitProbe {
 public:
  LimitProbe(Engine&, Isa);
  void take(double budget_s = 0.05);
  void forget() { taken_.clear(); }
  const std::vector<Chip>& taken() const { return taken_; }  // in turn
  Chip median() const { return median_of(taken_); }          // of all probes since it last forgot
  std::string read_text() const;  // ", memory's by reading the model's 96.44 MB"; empty where a GPU says its limits

 private:
  Engine& engine_;
  Isa isa_;
  std::vector<Chip> taken_;
};

// What steps cost, by the program that runs. On a CPU activations stay in caches: only weights and state count as moved.
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
std::string share_text(double, bool busy);  // "77%", or "~77%" where both the speed and the limit are those of a busy machine

struct Run {
  double seconds = 0;
  std::vector<StepWork> steps;
};

inline constexpr double moved_share = 0.15;  // a limit that moved by more of itself while a row was measured has moved

struct Measured {
  std::vector<double> seconds;  // of each run
  std::vector<StepWork> steps;  // of the median run
  StepCost limit;               // of these steps, at the median of the limits that were probed before, between and after the runs
  Chip chip;                    // those limits
  std::vector<double> rates;    // a second, of what binds (bytes or flops), as each probe in turn found it
  double others = 0;            // share of the processors that other programs used meanwhile

  bool busy() const { return others > busy_share; }
  double best() const;
  double median() const { return seconds[median_run(seconds)]; }
  std::optional<double> spread() const;  // (median - best) / best; none of a single run
  std::string spread_text() const;       // "1.3%", or nothing
  // Medians of both: the memory of a shared machine is faster at one moment than at another, and the best of many short probes
  // would be held against the best of a few long runs.
  double share() const { return limit.seconds / median(); }
  // Of what each run gave, that of the median one; the first run may not have counted.
  template <class T>
  const T& median_of(const std::vector<T>& of_runs) const {
    return of_runs[of_runs.size() - seconds.size() + median_run(seconds)];
  }
  double moved() const;  // from the lowest to the highest of the rates, as a share of their median
  bool has_moved() const { return moved() > moved_share; }
};

// "memory at 57.10 GB/s": what binds, and the limit that was measured of it; where that moved, " (41.20 to 61.30 GB/s)" behind it.
std::string bound_text(const Measured&);
std::string moved_text();  // what the brackets mean, for the end of a table

bool is_enough(const Measured&, const Patience&, double spent_s);

// The first run only touches memory that is new, unless it takes a good part of the budget. A terminal is told how far `what` is.
Measured measure(const std::string& what, const Patience&, LimitProbe&, const StepCosts&, const std::function<Run()>& once);

// What rows of all benchmarks have in common: seconds, bytes, flops, limits and shares, for this many tokens.
Json measured_json(const Measured&, double tokens);

}  // namespace mr
