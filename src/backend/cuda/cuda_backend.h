// The operations on one NVIDIA GPU (Hopper). Tensors, weights and batches passed to operations are in device memory: weights
// come from place(), batches from upload(). Activations may be f32 or bf16, by each operand's dtype; the residual stream
// stays f32 (it costs 1 % of a long prefill and nothing of a decode). Work is queued on one stream; the host blocks only in collect(),
// copy_in(), copy_out() and synchronize(). The KV cache is stored layer by layer, so that a layer's pages are close together:
// unit u of a layer's block is K [kv_head][page_tokens][k_dim], then V likewise.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "backend/backend.h"
#include "backend/model_facts.h"

namespace mr {

class CudaBackend : public Backend {
 public:
  virtual std::string device() const = 0;                                  // "NVIDIA H200, 132 multiprocessors, cuBLASLt of ..."
  virtual void copy_within(void* to, const void* from, size_t bytes) = 0;  // both on the device
  virtual double milliseconds(const std::function<void()>& work) = 0;      // device time
  // Reports every launch from now on as a line "name grid block shared"; those of a graph at its capture. Empty: stops.
  virtual void log_launches(std::function<void(const std::string&)>) = 0;
};

struct CudaOptions {
  bool deterministic = false;       // a row's value does not depend on the rest of the batch
  std::optional<ModelFacts> model;  // the model it will run; none: only single operations
  int skinny_rows = 32;             // products of more rows may use cuBLASLt
  int chain = 3;                    // fewest consecutive operations of few rows worth a chain
  bool plain = false;               // one operation at a time, by kernels that need nothing of Hopper: what any other GPU would run
};

std::string why_no_cuda();  // empty: there is a Hopper GPU with its driver, and this build has kernels for it
inline bool cuda_available() { return why_no_cuda().empty(); }
std::unique_ptr<CudaBackend> make_cuda_backend(const CudaOptions& = {});  // throws why_no_cuda()

}  // namespace mr
