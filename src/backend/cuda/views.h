// Converts tensors, weights, state and batches to the kernels' argument structures. Nothing is computed or copied here.
#pragma once

#include <optional>

#include "backend/cuda/attention/attention.h"
#include "backend/cuda/gemm/gemm.h"
#include "backend/cuda/recurrent/recurrent.h"

namespace mr::cuda {

Matrix matrix(Tensor);
Heads heads(Tensor);  // [T, dim] counts as one head
const float* floats(Tensor);

std::optional<Packing> packing_of(const Codec&);  // nothing: rows of bf16
Packed packed(const Weight&);

Product product_of(Tensor out, Tensor x, const Weight&, const Epilogue&);
Product gated_product(Tensor out, Tensor x, const Weight&, Activation);
bool shape_fits(const Product&);  // whether product() supports its shape
bool suits_many(const Product&);  // whether product_many() is faster than cuBLASLt

Slots slots(const SlotState&, const Batch&, const StateMemory&);
Recurrence recurrence(const Batch&);
// Mamba's selection of dt, B and C: (low, B, C) = x . u, each normalized if norms has an entry; dt = low weight . low.
struct Selection {
  const Weight *x = nullptr, *low = nullptr;  // [rank + 2 n_state, inner], [inner, rank]
  const Norm* norms[3] = {};                  // of low, B and C; null: none
  Tensor dt_bias;                             // f32 [inner]
};
std::optional<SelectCall> select_call(Tensor out, Tensor u, Tensor z, const Selection&, const DiagScan&);  // none: not supported
Spots spots(const Batch&);
Pages pages(const PagedKv&, const Batch&, const StateMemory&);
AttendCall call_of(Tensor out, Tensor q, const PagedKv&, const Batch&, const StateMemory&, const AttendArgs&);

}  // namespace mr::cuda
