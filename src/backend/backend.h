// Executes programs. Every backend (ref, cpu, cuda) implements the plain operations; tests compare each with ref over odd shapes.
// Marks are runs of operations that a backend may fuse. Shapes are those of program/ops.h, with T the rows passed to the operation.
// Activations are f32 unless activations() says otherwise; a view may be strided in all but its last dimension (a column slice of a
// fused projection).
// Invariant: the value of a row depends only on that row and its own sequence, never on the rest of the batch.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "backend/batch.h"
#include "core/isa.h"
#include "core/tensor.h"
#include "core/thread_pool.h"
#include "program/bound.h"

namespace mr {

// Observes a run, for timing and calibration: called after every operation or accepted mark, once its results are complete.
class Observer {
 public:
  virtual ~Observer() = default;
  virtual void begin() = 0;  // starts the clock for the next ran()
  virtual void ran(const Bound&, int first, int count) = 0;
  virtual void ran(std::string_view what) = 0;  // work outside the program: "upload", "sample"
};

// Memory for weights, state and activations. own: dedicated to this process, so state may take nearly all that is left.
struct DeviceMemory {
  int64_t bytes = 0;
  bool own = false;
};

// Peak rates of a device, per second.
struct DeviceRates {
  double bytes = 0, flops = 0;  // of a copy, counting reads and writes; of a bf16 matrix product
};

// Upper bounds of a step; context: tokens of the longest sequence.
struct StepLimits {
  int64_t tokens = 0, outputs = 0, sequences = 0, context = 0;
};

// Scratch and other memory that a backend allocates for itself.
struct OwnMemory {
  std::string_view what;
  int64_t bytes = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string_view name() const = 0;
  virtual ThreadPool& pool() = 0;

  // Memory placement and synchronization. The defaults mean host memory and synchronous execution. Tensors, weights and batches
  // passed to operations come from allocate(), place() and upload().
  virtual DType activations() const { return DType::f32; }  // between operations; residual stream, angles and logits are always f32
  virtual DType kv_dtype() const { return DType::f16; }     // default type of the KV cache
  virtual std::span<const DType> kv_dtypes() const;         // those that it has kernels for: of kv_formats()
  virtual std::span<const DType> state_dtypes() const;      // of the state of scans
  virtual DeviceMemory memory() const;                      // available to the engine; own memory already allocated counts as available
  virtual std::optional<DeviceRates> rates() { return std::nullopt; }  // measures, for some milliseconds; none: use backend/cpu/probe.h
  virtual Buffer allocate(size_t bytes) { return Buffer(bytes); }      // zeroed
  virtual void copy_in(void* to, const void* host, size_t bytes);
  virtual void copy_out(void* host, const void* from, size_t bytes);
  virtual void carry_out(std::span<const UnitCopy>, const StateMemory&, const StateMemory& host);
  // A weight in the layout that linear() reads: as it is stored, unless the backend has a better one. A store that only counts gets no
  // data.
  virtual Weight place(const StoredWeight&, WeightStore&);
  // Made-up bf16 values that give outputs of unit variance; the same on every backend.
  virtual Weight make_up(int64_t out, int64_t in, uint64_t seed, WeightStore&);
  // The batch as operations read it, until the next upload. `host` must live until the step's tokens are collected.
  virtual Batch upload(const Batch& host, const StateMemory&) { return host; }
  // Steps of one row per sequence are padded to this many sequences, so that few graph shapes need capturing.
  virtual int padded(int n_seqs) const { return n_seqs; }
  // True: operations are asynchronous, and the host may prepare the next step before this one completes.
  virtual bool queues() const { return false; }
  virtual void synchronize() {}

  virtual void check_runs(const Program&) const {}  // throws if it has no kernel for an operation; the program may be an outline
  // Upper bound of its own allocations, beside weights, state and arena, for steps within the limits.
  virtual std::vector<OwnMemory> own_memory(const Program&, const StepLimits&) const { return {}; }
  virtual int64_t own_bytes() const { return 0; }  // of own_memory(), allocated so far
  // Called once per program, before its first run: builds tables and all else that does not depend on a step.
  virtual void prepare(const Program&, const StepLimits& = {}) {}
  // Runs the list that suits the batch, in the arena, and returns the logits: f32 [n_out, V].
  virtual Tensor run(const Program&, const Batch&, const StateMemory&, Arena&, Observer* = nullptr);
  // Runs a mark's operations fused, with the results of running them one by one, or returns false. Values not read later may be skipped.
  virtual bool run_mark(const Mark&, const Bound&, const Batch&, const StateMemory&) { return false; }
  void run_op(const Op&, const Bound&, const Batch&, const StateMemory&);

  // out [T, D] = scale * table[token of each row]; a token beyond the table reads its first row
  virtual void embed(Tensor out, const Weight& table, float scale, const Batch&) = 0;
  // out [..., D] = norm(x) * weight + bias, over the last dimension; out may be x. x may have rank 3 (per-head norms)
  virtual void norm(Tensor out, Tensor x, const Norm&) = 0;
  // out [T, out] = epilogue(x [T, in] . weight^T)
  virtual void linear(Tensor out, Tensor x, const Weight&, const Epilogue&) = 0;
  // into += scale * x, both [T, D]
  virtual void add(Tensor into, Tensor x, float scale) = 0;
  // out [T, F] = act(gate) * up; gate and up may be column slices of one tensor
  virtual void gate(Tensor out, Tensor gate, Tensor up, Activation) = 0;
  // x [T, F] = act(x), in place
  virtual void activate(Tensor x, Activation) = 0;

  // out [T, dim] = cos of each pair, then sin, of every row's position
  virtual void angles(Tensor out, const RopeTable&, const Batch&) = 0;
  // x [T, heads, d] rotated in place by angles [T, dim]
  virtual void rope(Tensor x, Tensor angles, bool interleaved) = 0;
  // k [T, K, k_dim], v [T, K, v_dim] rounded to the stored type: row i of a sequence is its token context + i
  virtual void store_kv(const PagedKv&, Tensor k, Tensor v, const Batch&, const StateMemory&) = 0;
  // out [T, H, v_dim] = softmax(q [T, H, k_dim] . K) V over the context and the step's own rows, which are stored already
  virtual void attend(Tensor out, Tensor q, const PagedKv&, const Batch&, const StateMemory&, const AttendArgs&) = 0;

  // out [T, C] = act(bias + depthwise causal convolution of x [T, C])
  virtual void short_conv(Tensor out, Tensor x, Tensor weight, Tensor bias, Activation, const SlotState&, const Batch&,
                          const StateMemory&) = 0;
  // h = exp(dt a) h + dt B x;  out [T, inner] = (C . h + d x). x, dt [T, inner] (dt after softplus), B, C [T, n_state]
  virtual void diag_scan(Tensor out, Tensor x, Tensor dt, Tensor b, Tensor c, const DiagScan&, const Batch&, const StateMemory&) = 0;
  // For each head: h = exp(dt a) h + (dt x) outer B;  out = (C . h + d x). out, x [T, heads * head_dim], dt [T, heads] after
  // softplus, clamped to [dt_min, dt_max]; B, C [T, groups * n_state]
  virtual void outer_scan(Tensor out, Tensor x, Tensor dt, Tensor b, Tensor c, const OuterScan&, const Batch&, const StateMemory&) = 0;
  // x [T, C] = log(1 + exp(x + bias)), in place
  virtual void softplus(Tensor x, Tensor bias) = 0;

  // Top-k experts of every row of logits [T, E], best first, ties to the lower id: expert i32 [T, k], weight f32 [T, k] is
  // their softmax over all E, or over the k (renormalize). Overwrites the logits
  virtual void route(Tensor expert, Tensor weight, Tensor logits, bool renormalize) = 0;
  // Row t * k + j of out [T * k, out] = x . experts[expert [t, j]]^T, with row t of x [T, in] or row t * k + j of x [T * k, in]
  virtual void grouped_linear(Tensor out, Tensor x, std::span<const Weight> experts, Tensor expert) = 0;
  // out [T, n, D] = (add: +=) for each of n the sum over j, ascending, of weight [t, i * k + j] times x [t, j] of [T, k, D]. Of rank 2,
  // x is [T * k, D] and n is 1. With n = k = 1, out may be x
  virtual void combine(Tensor out, Tensor x, Tensor weight, bool add) = 0;
  // out f32 [T, 1] = a number of every row of x [T, D]
  virtual void magnitude(Tensor out, Tensor x, const Magnitude&) = 0;

  // out [n_out, D] = rows out_row of x [T, D]
  virtual void gather(Tensor out, Tensor x, const Batch&) = 0;
  // x = softcap * tanh(x / softcap), in place
  virtual void softcap(Tensor x, float softcap) = 0;
  // out[i] for every output row with Out::token; edits and masks modify logits [n_out, V] in place
  virtual void sample(Tensor logits, const Batch&, std::vector<Sampled>& out) = 0;

  // sample() in two halves: after the first the next step's embed() may read the tokens, after the second the host may.
  // Launched steps are collected in order.
  virtual void launch_sample(Tensor logits, const Batch&);
  virtual void collect(std::vector<Sampled>& out);

 private:
  std::deque<std::vector<Sampled>> launched_;
};

// check_runs() for backends whose kernels keep a convolution's last inputs in registers.
void check_conv_widths(const Program&, int widest, std::string_view backend);
Tensor by_token(Tensor x, int64_t n_tokens);  // [T * k, D] as [T, k, D], for combine(); of rank 3 it is so already

std::unique_ptr<Backend> make_ref_backend();  // scalar f32, simple enough to be trusted
std::unique_ptr<Backend> make_cpu_backend(Isa isa, int n_threads);

}  // namespace mr
