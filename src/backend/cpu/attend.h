// Attention on the CPU: splits a step into units of work, runs them on the pool and merges split blocks (flash decoding).
#pragma once

#include <algorithm>
#include <atomic>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu/linear.h"
#include "backend/cpu/op_kernels.h"
#include "backend/kv_pages.h"

namespace mr {

// The kernels' name for a stored type. Throws Error for one that they do not have.
StoredAs stored_as(DType);

// Stores key and value of one head of token `place` in its page, rounded to the stored type.
void store_head(const OpKernels&, const KvPages&, int seq, int head, int64_t place, const float* k, const float* v);

class CpuAttention {
 public:
  // Rows of this step not stored yet, one per sequence: q [T, H, d] and k [T, K, d] are still to be rotated by `angles` (may be empty),
  // k and v to be stored. Empty k: everything is stored.
  struct NewRows {
    Tensor k, v, angles;
    bool interleaved = false;
  };

  explicit CpuAttention(const OpKernels& kernels) : kernels_(kernels) {}
  void run(Tensor out, Tensor q, const PagedKv&, const Batch&, const StateMemory&, const AttendArgs&, ThreadPool&, const NewRows&,
           const RoundAhead&);

  // Upper bound of its scratch, for calls like this one.
  int64_t needs(const PagedKv&, const AttendArgs&, const StepLimits&, int n_threads) const;
  int64_t bytes() const;  // scratch allocated so far

 private:
  // The keys of one span that a block sees.
  struct Keys {
    int seq, kv_head;
    int32_t begin, end;
  };
  // Consecutive rows of one sequence. All query heads of one K/V head over these rows share one pass over keys and values.
  struct Block {
    int seq, row, n_rows;
    int32_t first, end;  // keys that any of the rows sees
    int64_t partial;     // offset of its spans' results in partials_, -1: not split
    int64_t left;        // index of its countdowns in left_
    int n_spans() const { return (end - 1) / SpanCall::kSpan - first / SpanCall::kSpan + 1; }
    Keys span(int kv_head, int i) const {
      const int32_t at = (first / SpanCall::kSpan + i) * SpanCall::kSpan;
      return {seq, kv_head, std::max(first, at), std::min(end, at + SpanCall::kSpan)};
    }
  };
  struct Unit {
    int block, kv_head, span;  // span -1: all of them
  };
  struct Worker {
    Buffer memory;
    const void* fetched = nullptr;  // first key tile prefetched by the previous unit
  };
  struct Call;
  struct Scratch;

  void plan(const Call&, int n_threads);
  void place(const Call&, const Block&, int kv_head);  // rotates and stores a block's new row
  void run_unit(const Call&, size_t unit, Worker&);
  Keys first_keys(size_t unit) const;
  // next: the keys that the worker attends to after these, to prefetch.
  void run_span(const Call&, const Block&, const Keys&, const Keys& next, Scratch&, Worker&);
  // Reads codes whose scales are beside them, and widens what the kernels do not read as it is stored, for n queries.
  SpanCall prepare_tiles(const Call&, const Keys&, int n_tiles, int n_queries, Scratch&) const;
  float* partial(const Call&, const Block&, int kv_head, int span) const;
  void join(const Call&, const Block&, int kv_head, Scratch&) const;  // merges the spans of a split block
  void finish(const Call&, const Block&, int kv_head, const Scratch&) const;

  const OpKernels& kernels_;
  std::vector<Block> blocks_;
  std::vector<Unit> units_;
  std::vector<Worker> workers_;
  std::vector<std::atomic<int>> left_;  // [split block][kv_head] spans still to be done
  Buffer partials_;                     // [split block][kv_head][span][max, sum, acc of each query]
  int64_t cost_ = 0;                    // multiply-adds of the call
};

}  // namespace mr
