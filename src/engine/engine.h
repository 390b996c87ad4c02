// The engine: requests in, tokens out. submit() and cancel() may be called from any thread; one thread calls step() or run().
// The step loop decides how steps overlap: while one runs, a companion thread may deliver events, take in requests and plan, so sinks
// are called on either thread, one at a time. A request that fails ends with Finish::error; the engine keeps running.
#pragma once

#include <condition_variable>
#include <filesystem>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <stop_token>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/load.h"
#include "engine/memory.h"
#include "engine/metrics.h"
#include "engine/request.h"
#include "engine/runner.h"
#include "engine/scheduler.h"
#include "engine/step_loop.h"
#include "model/model.h"

namespace mr {

struct EngineOptions {
  std::string device = "cpu";        // cpu | cuda | ref
  std::optional<Isa> isa;            // none: the best of this machine
  int threads = 0;                   // 0: one per core
  bool deterministic = false;        // results do not depend on the rest of the batch, on a GPU too
  std::optional<DType> kv_dtype;     // none: the device's
  std::optional<DType> state_dtype;  // of scans; none: what the model was made for, if the device has it, else f32
  int max_seqs = 16;
  int max_batch_tokens = 512;
  int max_prompt_tokens = 0;  // most prompt rows of a step; 0: no separate limit
  int max_context = 0;        // 0: the model's
  int64_t state_bytes = 0;    // 0: the longest context for a few sequences, but at most 40 % of the machine's memory; most of a GPU's
  int64_t swap_bytes = 0;     // host memory for the state of preempted sequences; 0: they recompute it
  Victim victim = Victim::newest;
  int page_tokens = 32;
  bool prefix_cache = true;
  bool overlap = true;               // plan the next step while one runs
  std::optional<bool> launch_ahead;  // and launch it before the last one's tokens are known; none: if the backend is asynchronous

  // Baselines, to measure what the other techniques gain.
  Batching batching = Batching::continuous;
  double batch_delay_s = 0.05;  // dynamic batching
  bool contiguous = false;      // contiguous state for the longest context for every sequence
  bool kv_cache = true;         // false: every token recomputes its whole context

  std::optional<uint64_t> random_weights;
  std::string quantize;     // the format in which weights are encoded while they are loaded (WeightFormats); empty: as stored
  bool requantize = false;  // also those that are quantized already
  std::function<void(int64_t done, int64_t total)> progress;  // of loading, in bytes
  std::function<void(const StepWork&)> on_step;               // after every step, on the engine's thread
};

// With as much at once as keeps the device busy. auto: a GPU where there is one that can be used, else cpu.
EngineOptions options_for(const std::string& device);

class Engine : Desk {
 public:
  static std::unique_ptr<Engine> create(const std::filesystem::path& model, const EngineOptions&);

  // Throws Error for an invalid request. Returns the id for cancel().
  int64_t submit(Request, Sink);
  void cancel(int64_t id);

  bool step(bool more_may_come = false);  // false: idle; or, if more may come, a batch waits to be filled
  void run(std::stop_token);
  void close();  // no more requests will come: a batch that is not full need not wait

  const Tokenizer* tokenizer() const { return files_.tokenizer ? &*files_.tokenizer : nullptr; }
  const Checkpoint& checkpoint() const { return *files_.checkpoint; }
  const GenerationDefaults& generation_defaults() const { return files_.sampling; }
  const Model& model() const { return *model_; }
  Backend& backend() { return *backend_; }
  const EngineMemory& memory() const { return memory_; }
  const MemoryPlan& memory_plan() const { return memory_.state; }
  int max_context() const { return memory_.max_context; }
  int room_after(size_t n_prompt) const;  // tokens of an answer that fit, in the context and in the memory for state; 0: none
  int max_seqs() const { return limits_.max_seqs; }
  const SchedulerLimits& limits() const { return limits_; }
  Stats stats() const { return metrics_.read(); }
  StateStats state_stats() const { return states_->stats(); }       // on the engine's thread
  void observe(Observer* observer) { runner_->observe(observer); }  // null: nobody; between steps, on the engine's thread
  void check_invariants() const;                                    // throws if a unit of state is lost; on the engine's thread

 private:
  Engine() = default;
  void validate(const Request&) const;
  std::string salt_of(const Request&) const;
  bool advance(bool more_may_come);
  void read_mail() override;
  void deliver_news() override;
  void has_news(Answering&) override;
  void fail(Answering&, const char* why) override;
  int64_t next_cancelled();  // 0: none. Also moves submitted requests to arriving_
  void take_in(std::unique_ptr<Answering>&);
  void deliver(Answering&);
  bool tell(Answering&);
  void end(Answering&, Finish, const char* error);
  void fail_all(const char* why);
  void bury();
  void forget(int64_t n_over);
  void note_progress();

  // In the order of construction.
  ModelFiles files_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Model> model_;
  EngineMemory memory_;
  SchedulerLimits limits_;
  std::unique_ptr<StateStore> store_;
  std::unique_ptr<StateManager> states_;
  Metrics metrics_;
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<Runner> runner_;

  // Used by the engine's thread, or by the companion while a step runs.
  std::unordered_map<int64_t, std::unique_ptr<Answering>> requests_;
  std::list<std::unique_ptr<Answering>> arriving_;  // submitted requests to be taken in
  std::vector<int64_t> news_, ended_;               // requests with undelivered events, and that have ended; each once
  std::vector<int64_t> buried_;                     // ended too, but a step in flight may still refer to them
  std::unique_ptr<StepLoop> loop_;                  // after the members above, which its companion uses

  // Shared with other threads.
  std::mutex mutex_;
  std::condition_variable_any mail_came_;
  std::list<std::unique_ptr<Answering>> submitted_;
  std::vector<int64_t> cancelled_;
  int64_t n_open_ = 0;  // requests submitted and not ended
  bool closed_ = false;
  int64_t next_id_ = 1;
  std::random_device entropy_;
};

}  // namespace mr
