// A model on a chip: the numbers that `millrace analyze` reports. report.h formats them.
#pragma once

#include <optional>
#include <vector>

#include "analyze/roofline.h"
#include "analyze/subject.h"

namespace mr {

struct Question {
  Subject subject;
  Deployment on;
  std::vector<int64_t> batches{1, 16, 64, 256};
  std::vector<int64_t> contexts{1024};
  double user_tokens_per_s = 10;  // faster than reading
  double deadline_s = 1;          // for the first token, when all prompts of a batch arrive at once
  double price = 1;               // of one chip for an hour
  double demand_words = 0;        // a day; 0: none
  struct Draft {
    Subject subject;
    double acceptance = 0.7;  // probability that a drafted token is accepted
    int lookahead = 4;        // tokens drafted a step
  };
  std::optional<Draft> draft;
};

// One batch at one context. memory, latency_s, tokens_per_s: the napkin law, memory = parameters + state, all of it read in a step; a
// draft model counts in the memory, but not in the latency. step_*: the operations, each at the roofline.
struct AnalysisRow {
  int64_t batch = 0, context = 0;
  double parameter_bytes = 0, state_bytes_per_sequence = 0, memory_bytes = 0, memory_per_chip = 0;
  bool fits = false;
  double latency_s = 0, tokens_per_s = 0;
  StepCost step;
  double step_tokens_per_s = 0;
  double price_per_million = 0;  // tokens, by step_tokens_per_s
  double draft_speedup = 0;      // with drafts over without; 0: no draft
};

// What fits at one context.
struct Fitting {
  int64_t context = 0;
  double ttft_s = 0;            // one prompt of this length
  int64_t largest_batch = 0;    // that fits in memory; 0: none
  int64_t users = 0;            // that fit and get user_tokens_per_s each
  int64_t within_deadline = 0;  // that fit and whose prompts, read together, meet the deadline
  int64_t both = 0;             // the batch of the members below; 0: none meets both, and all of them are 0
  double tokens_per_s = 0;
  double price_per_million = 0;
  int64_t chips_for_demand = 0;  // 0 without demand, too
};

struct Analysis {
  Question question;
  std::vector<std::string> warnings;  // about inputs that make little sense
  int64_t parameters = 0, parameters_with_norms = 0, active_parameters = 0;
  std::vector<StateKind> state;
  std::vector<AnalysisRow> rows;                             // every batch at every context
  std::vector<AnalysisRow> curve;                            // batches 1, 2, 4, ... that fit, at the first context
  std::vector<Fitting> limits;                               // one for each context
  std::vector<std::pair<int64_t, int64_t>> longest_context;  // for each batch; 0: it does not fit
  struct Point {
    bool prefill;
    Phase phase;
    Operation op;  // the share of one chip
    RoofTime time;
  };
  std::optional<FlashCost> flash;  // at the first context; none without attention heads or if the chip's unit memory is unknown
  std::vector<Point> operations;   // prefill of one prompt, then generation of every batch, at the first context
};

Analysis analyze(Question);

double memory_bytes(const Question&, double batch, double context, int chips);  // on one of `chips` chips; includes the draft's

int64_t shown_batch(const Analysis&);  // its operations are shown: the largest given one that fits, or the first

// A dimension that cannot be split evenly over chips. Heads and widths must divide; key/value heads may be replicated.
struct UnevenPart {
  const char* what;
  int n;
};
std::optional<UnevenPart> uneven_part(const ModelSpec&, int chips);
void check_split(const ModelSpec&, int chips);  // throws if there is one

// The largest n >= 0 for which ok(n) holds, where ok(n) implies ok(n - 1); at most 2^40.
template <class Ok>
int64_t largest(Ok ok) {
  int64_t low = 0, high = 1;
  while (high < int64_t(1) << 40 && ok(high)) {
    low = high;
    high *= 2;
  }
  while (high - low > 1) {
    int64_t middle = low + (high - low) / 2;
    (ok(middle) ? low : high) = middle;
  }
  return low;
}

}  // namespace mr
