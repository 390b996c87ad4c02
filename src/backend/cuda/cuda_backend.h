// The operations on one NVIDIA GPU (Hopper). Tensors, weights and batches that its operations take are in device memory: weights
// come from place(), batches from upload(). Activations may be f32 or bf16, each operand as its dtype says; the residual stream
// stays f32 (it costs 1 % of a long prefill and nothing of a decode). Work is queued on one stream; the host waits in collect(),
// copy_out() and synchronize() alone. Keys and values lie layer after layer, so that a layer's pages are near each other: unit u of
// a layer's block is K [kv_head][page_tokens][k_dim], then V likewise.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "backend/backend.h"

namespace mr {

class CudaBackend : public Backend {
 public:
  virtual std::string device() const = 0;  // "NVIDIA H200, 132 multiprocessors, cuBLASLt of ..."

  // Device memory, zeroed, 256-byte aligned, kept until the backend ends.
  virtual std::byte* allocate(size_t bytes) = 0;
  // A weight whose stored rows lie on the host, as bf16 [out, in] on the device.
  virtual Weight place(const FormatOps&, std::span<const std::byte* const> rows, int64_t in) = 0;
  virtual Weight random_weight(int64_t out, int64_t in, uint64_t seed) = 0;  // outputs of unit variance
  virtual Tensor place(Tensor host) = 0;                                     // a contiguous copy
  // The arrays of a batch in one copy; what is returned holds device pointers until the next upload, `host` must live as long.
  // Batches of the same shape get the same addresses. Groups are as in `state`.
  virtual Batch upload(const Batch& host, const StateMemory& state) = 0;

  // out [T, F] = act(first half) * second half of x . weight [2 F, in]^T
  virtual void linear_gate(Tensor out, Tensor x, const Weight&, Activation) = 0;
  // linear() and linear_gate() of norm(x): one kernel where that pays.
  virtual void linear_normed(Tensor out, Tensor x, const Norm&, const Weight&, const Epilogue&) = 0;
  virtual void linear_gate_normed(Tensor out, Tensor x, const Norm&, const Weight&, Activation) = 0;
  // rope of q and k, store_kv, attend: k and v [T, K, d] are this step's. `angles` may be empty. q may be changed.
  virtual void attend_new(Tensor out, Tensor q, Tensor k, Tensor v, Tensor angles, bool interleaved, const PagedKv&, const Batch&,
                          const StateMemory&, const AttendArgs&) = 0;

  // sample() in two halves: tokens are chosen and kept on the device for the next step's embed(); collect() waits for them.
  virtual void launch_sample(Tensor logits, const Batch&) = 0;
  virtual void collect(std::vector<Sampled>& out) = 0;

  // Runs `step`, whose operations must depend on nothing but what upload() wrote since it was first run under this key: the first
  // time as it is, then as one captured graph.
  virtual void replay(uint64_t key, const std::function<void()>& step) = 0;

  virtual void copy_within(void* to, const void* from, size_t bytes) = 0;  // both on the device
  virtual void copy_in(void* device, const void* host, size_t bytes) = 0;
  virtual void copy_out(void* host, const void* device, size_t bytes) = 0;
  virtual void synchronize() = 0;
  virtual double milliseconds(const std::function<void()>& work) = 0;  // of the device's time
};

struct CudaOptions {
  bool deterministic = false;   // a row's value does not depend on the rows beside it
  int kv_heads = 8;             // of the model's attention layers: decodes are shared out with them in mind
  int group = 4;                // query heads of each
  bool share_prefixes = false;  // a run of pages that sequences of one row begin with alike is read once for all of them; for models
                                // whose attention layers all see their whole context
  int skinny_rows = 16;         // products of more rows go to cuBLASLt
  int stream_rows = 0;          // products of no more rows go through registers
  int norm_rows = 0;            // and norms of no more rows are taken by the product that follows
};

bool cuda_available();                                                    // a Hopper GPU and a driver that serves it
std::unique_ptr<CudaBackend> make_cuda_backend(const CudaOptions& = {});  // throws where there is none

}  // namespace mr
