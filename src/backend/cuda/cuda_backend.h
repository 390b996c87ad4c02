// The operations on one NVIDIA GPU (Hopper). Tensors, weights and batches that its operations take are in device memory: weights
// come from place(), batches from upload(). Activations may be f32 or bf16, each operand as its dtype says; the residual stream
// stays f32 (it costs 1 % of a long prefill and nothing of a decode). Work is queued on one stream; the host waits in collect(),
// copy_in(), copy_out() and synchronize() alone. Keys and values lie layer after layer, so that a layer's pages are near each other:
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
  virtual double milliseconds(const std::function<void()>& work) = 0;      // of the device's time
  // A line for every launch from now on, "name grid block shared"; of a graph when it is captured. Empty: no more.
  virtual void log_launches(std::function<void(const std::string&)>) = 0;
};

struct CudaOptions {
  bool deterministic = false;       // a row's value does not depend on the rows beside it
  std::optional<ModelFacts> model;  // that it will run; none: operations alone
  int skinny_rows = 32;             // products of more rows may go to cuBLASLt
  int chain = 3;                    // operations of few rows that are worth one kernel for all of them
};

std::string why_no_cuda();  // empty: there is a Hopper GPU, its driver, and this build has kernels for it
inline bool cuda_available() { return why_no_cuda().empty(); }
std::unique_ptr<CudaBackend> make_cuda_backend(const CudaOptions& = {});  // throws where there is none

}  // namespace mr
