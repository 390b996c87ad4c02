// Counters of an engine. The engine's thread writes, any thread may read; each number is exact, their set is a moment's blur.
#pragma once

#include <atomic>
#include <cstdint>

namespace mr {

struct Stats {
  int64_t requests = 0, finished = 0, steps = 0;
  int64_t prompt_tokens = 0, prefix_hit_tokens = 0, generated_tokens = 0;
  int64_t computed_tokens = 0;  // rows that went through the model, recomputed ones included
  int64_t preemptions = 0;
  double prefill_s = 0, decode_s = 0;  // a step with any row of a prompt counts as prefill
  int running = 0, waiting = 0;
};

class Metrics {
 public:
  std::atomic<int64_t> requests{0}, finished{0}, steps{0};
  std::atomic<int64_t> prompt_tokens{0}, prefix_hit_tokens{0}, generated_tokens{0}, computed_tokens{0};
  std::atomic<int64_t> preemptions{0};
  std::atomic<int64_t> prefill_ns{0}, decode_ns{0};
  std::atomic<int> running{0}, waiting{0};

  Stats read() const {
    return {requests,
            finished,
            steps,
            prompt_tokens,
            prefix_hit_tokens,
            generated_tokens,
            computed_tokens,
            preemptions,
            double(prefill_ns) / 1e9,
            double(decode_ns) / 1e9,
            running,
            waiting};
  }
};

}  // namespace mr
