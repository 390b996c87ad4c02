// Attention on the CPU: cuts a step into units of work, runs them on the pool and joins what was cut.
#pragma once

#include <vector>

#include "backend/backend.h"
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
  void run(Tensor out, Tensor q, const PagedKv&, const Batch&, const StateMemory&, const AttendArgs&, ThreadPool&, const NewRows&);

 private:
  // Consecutive rows of one sequence. All query heads of one K/V head over these rows share the keys and values they read.
  struct Block {
    int seq, row, n_rows;
    int32_t first, end;  // keys that any of the rows sees
    int64_t partial;     // where the results of its spans are kept, -1: it is not cut
    int n_spans() const { return (end - 1) / SpanCall::kSpan - first / SpanCall::kSpan + 1; }
  };
  struct Unit {
    int block, kv_head, span;  // span -1: all of them
  };
  struct Call;
  struct Scratch;

  void plan(const Call&, int n_threads);
  void place(const Call&, const Block&, int kv_head);  // the new row of a block
  void run_unit(const Call&, const Unit&, std::byte* scratch);
  void run_span(const Call&, const Block&, int kv_head, int64_t span, Scratch&);
  void join(const Call&, const Block&, int kv_head, std::byte* scratch) const;  // the spans of a block that was cut
  void finish(const Call&, const Block&, int kv_head, const Scratch&) const;

  const OpKernels& kernels_;
  std::vector<Block> blocks_;
  std::vector<Unit> units_;
  std::vector<Buffer> scratch_;  // of each worker
  Buffer partials_;              // [cut block][kv_head][span][max, sum, acc of each query]
  int64_t cost_ = 0;             // multiply-adds of the call
};

}  // namespace mr
