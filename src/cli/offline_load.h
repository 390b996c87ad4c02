// Requests run through an engine in this program, as fast as it goes or at their own pace, and what became of them.
#pragma once

#include <vector>

#include "cli/measure.h"

namespace mr {

struct Job {
  int prompt = 0, answer = 0;
  int shared = 0;  // of the prompt's tokens: the same in every job
  int n = 1;
  bool late = false;              // it comes after eight steps, when the others have begun to answer
  std::vector<int32_t> tokens{};  // the prompt, if it is not to be made up
};

// How jobs come: all at once; so many at any time, an end bringing the next; or at these seconds, whatever was answered.
struct Pace {
  int streams = 0;  // 0: no limit
  std::vector<double> arrivals{};
};

struct LoadOutcome {
  double seconds = 1e30;                                                          // to the last token
  int64_t prompt = 0, generated = 0, computed = 0, preemptions = 0, swapped = 0;  // tokens, but for the last two
  std::vector<double> ttft_s, e2e_s;                                              // of each answer, since its request came
  double gap_s = 0;                               // the longest that an answer stood still after it had begun
  int running = 0;                                // at once, at most
  double internal_waste = 0, external_waste = 0;  // means over the steps

  double tokens_per_s() const { return double(generated) / seconds; }
};

// Another seed: other made-up prompts, and nothing is shared with the prompts of earlier runs.
LoadOutcome run_load(Engine&, const std::vector<Job>&, const Pace&, unsigned seed);

}  // namespace mr
