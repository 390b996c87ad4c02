// Runs a load on an engine in this process, as fast as possible or paced, and summarizes the outcome.
#pragma once

#include <vector>

#include "bench/measure.h"

namespace mr {

struct Job {
  int prompt = 0, answer = 0;
  int shared = 0;  // prompt tokens that are the same in every job
  int n = 1;
  bool late = false;              // arrives after eight steps, when the others are decoding
  std::vector<int32_t> tokens{};  // the prompt; empty: synthetic
};

// Arrivals: all at once; closed loop with `streams` open at any time; or open loop at these seconds.
struct Pace {
  int streams = 0;  // 0: no limit
  std::vector<double> arrivals{};
};

struct LoadOutcome {
  double seconds = 1e30;                                                          // to the last token
  int64_t prompt = 0, generated = 0, computed = 0, preemptions = 0, swapped = 0;  // tokens, but for the last two
  std::vector<double> ttft_s, e2e_s;                                              // of each answer, since its request arrived
  double gap_s = 0;                                                               // the longest pause between tokens of an answer
  int running = 0;                                                                // maximum at once
  double internal_waste = 0, external_waste = 0;                                  // means over the steps

  double tokens_per_s() const { return double(generated) / seconds; }
};

// Another seed gives other synthetic prompts, which share no prefix with earlier runs.
LoadOutcome run_load(Engine&, const std::vector<Job>&, const Pace&, unsigned seed);

}  // namespace mr
