// Counters of an engine. The engine's thread writes, any thread may read; each number is exact, but a set of them is no snapshot.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <vector>

namespace mr {

// What a request waits for: state memory, one of max_seqs, rows in a step, a batch
// to fill up or to end.
enum class Waits : uint8_t { none, memory, sequences, tokens, batch };

struct Stats {
  int64_t requests = 0, finished = 0, steps = 0;
  int64_t prompt_tokens = 0, prefix_hit_tokens = 0, generated_tokens = 0;
  int64_t computed_tokens = 0;  // rows computed, including recomputed ones
  int64_t preemptions = 0;
  double prefill_s = 0, decode_s = 0;  // a step with any row of a prompt counts as prefill
  int running = 0, waiting = 0;
  Waits waits_for = Waits::none;  // what the first waiting request lacks, and so all after it
  float state_usage = 0;          // fraction of the units that sequences hold, in the fullest group
  float internal_waste = 0;       // internal fragmentation: fraction of the tokens in held pages that are not filled
  float external_waste = 0;       // external fragmentation: fraction of the pages in holes too short for a contiguous sequence
  int64_t swapped_units = 0;      // to host memory
  int64_t last_step_ns = 0;       // end of the last step, by the steady clock
};

// The work of one step, for cost models.
struct StepWork {
  struct Part {
    int rows;     // of one sequence, padding included
    int context;  // tokens that the last of them sees, itself included
    int outputs;  // rows through the output layer
  };
  std::vector<Part> parts;
  bool prefill = false;  // some part is not a plain decode
  std::chrono::steady_clock::time_point begin, end;
};

class Metrics {
 public:
  std::atomic<int64_t> requests{0}, finished{0}, steps{0};
  std::atomic<int64_t> prompt_tokens{0}, prefix_hit_tokens{0}, generated_tokens{0}, computed_tokens{0};
  std::atomic<int64_t> preemptions{0};
  std::atomic<int64_t> prefill_ns{0}, decode_ns{0};
  std::atomic<int> running{0}, waiting{0};
  std::atomic<Waits> waits_for{Waits::none};
  std::atomic<float> state_usage{0}, internal_waste{0}, external_waste{0};
  std::atomic<int64_t> swapped_units{0}, last_step_ns{0};

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
            waiting,
            waits_for,
            state_usage,
            internal_waste,
            external_waste,
            swapped_units,
            last_step_ns};
  }
};

}  // namespace mr
