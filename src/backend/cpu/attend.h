// Attention on the CPU: cuts a step into units of work, runs them on the pool and joins what was cut.
#pragma once

#include <algorithm>
#include <atomic>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu/linear.h"
#include "backend/cpu/op_kernels.h"
#include "backend/kv_pages.h"

namespace mr {

// 0 f32, 1 f16, 2 bf16: how kernels name a stored type. Throws Error for any other.
int kernel_type(DType);

// Key and value of one head of token `place` to where they belong, in the stored type.
void store_head(const OpKernels&, const KvPages&, int seq, int head, int64_t place, const float* k, const float* v, int type);

class CpuAttention {
 public:
  // Rows of this step that are not placed yet, one a sequence: q and k [T, K, d] are to be rotated by `angles` (may be empty), k and
  // v stored. Empty k: all is in place.
  struct NewRows {
    Tensor k, v, angles;
    bool interleaved = false;
  };

  explicit CpuAttention(const OpKernels& kernels) : kernels_(kernels) {}
  void run(Tensor out, Tensor q, const PagedKv&, const Batch&, const StateMemory&, const AttendArgs&, ThreadPool&, const NewRows&,
           const RoundAhead&);

  // Bytes that it grows to at most, with calls like this one.
  int64_t needs(const PagedKv&, const AttendArgs&, const StepLimits&, int n_threads) const;
  int64_t bytes() const;  // that it has grown to

 private:
  // The keys of a span that a block sees.
  struct Keys {
    int seq, kv_head;
    int32_t begin, end;
  };
  // Consecutive rows of one sequence. All query heads of one K/V head over these rows share the keys and values they read.
  struct Block {
    int seq, row, n_rows;
    int32_t first, end;  // keys that any of the rows sees
    int64_t partial;     // where the results of its spans are kept, -1: it is not cut
    int64_t left;        // and where they are counted
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
    const void* fetched = nullptr;  // the first of the keys that are in a cache by now
  };
  struct Call;
  struct Scratch;

  void plan(const Call&, int n_threads);
  void place(const Call&, const Block&, int kv_head);  // the new row of a block
  void run_unit(const Call&, size_t unit, Worker&);
  Keys first_keys(size_t unit) const;
  // Next: what the worker will attend to after this.
  void run_span(const Call&, const Block&, const Keys&, const Keys& next, Scratch&, Worker&);
  float* partial(const Call&, const Block&, int kv_head, int span) const;
  void join(const Call&, const Block&, int kv_head, Scratch&) const;  // the spans of a block that was cut
  void finish(const Call&, const Block&, int kv_head, const Scratch&) const;

  const OpKernels& kernels_;
  std::vector<Block> blocks_;
  std::vector<Unit> units_;
  std::vector<Worker> workers_;
  std::vector<std::atomic<int>> left_;  // [cut block][kv_head] spans that are to be done
  Buffer partials_;                     // [cut block][kv_head][span][max, sum, acc of each query]
  int64_t cost_ = 0;                    // multiply-adds of the call
};

}  // namespace mr
