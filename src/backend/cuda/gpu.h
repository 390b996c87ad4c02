// State shared by operations and runs on a GPU: the stream, scratch memory, libraries, tables. Also dispatch: which kernel an operation
// uses, by the shapes of the step.
#pragma once

#include <functional>
#include <memory>

#include "backend/cuda/chain/programs.h"
#include "backend/cuda/choices.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/gemm/cublas.h"
#include "backend/cuda/step_memory.h"
#include "backend/cuda/tables.h"
#include "backend/cuda/views.h"

namespace mr::cuda {

// Where kernels are launched. A single operation launches at once; a run first launches the operations deferred in its chain.
class Lane {
 public:
  virtual ~Lane() = default;
  virtual const Launch& at() = 0;
  virtual bool wait(Product&) { return false; }  // true: the product was deferred to a chain
};

// Scratch memory of operations, one buffer per use. Grows only while no graph is being captured.
class Scratch {
 public:
  enum Use { x_bf16, half_norm_x, half_norm_x2, squares, squares2, partial, arrived, sampled_tokens, unpacked, groups, n_uses };
  ~Scratch();
  bool holds(Use use, size_t bytes) const { return bytes <= pieces_[use].bytes; }
  void* data(Use use) const { return pieces_[use].data; }
  int64_t bytes() const;  // of all pieces
  // The old address becomes invalid. The contents are lost, except for the sampled tokens: the step that needs more room for its
  // own begins by reading those of the previous step.
  void grow(Use, size_t bytes, cudaStream_t);

 private:
  struct Piece {
    void* data = nullptr;
    size_t bytes = 0;
  };
  Piece pieces_[n_uses];
};

inline constexpr int64_t kPackedRows = 64;  // for more rows the weight is dequantized first
inline int64_t padded_cols(int64_t cols) { return (cols + 7) / 8 * 8; }
// Sizes of the scratch of a decode, in elements.
inline int64_t partial_floats(int64_t shares, int64_t v_dim) { return shares * kGroup * (v_dim + kPartExtra); }  // of one slot
inline int64_t arrived_room(int64_t n_seqs, int64_t shares) { return std::max<int64_t>(n_seqs * shares, 1 << 16); }

class Gpu {
 public:
  explicit Gpu(const CudaOptions&);
  ~Gpu();

  // Computes the product with the kernel that suits it. both [T, out], bf16: scratch for both halves of a gated product.
  void multiply(Lane&, Product, const Weight&, Tensor both = {});
  void multiply_alone(const Launch&, const Product&) const;  // few rows, in a separate kernel
  bool is_one(const Product& p) const { return p.x.rows == 1 && !options.deterministic; }
  bool to_library(const Product&) const;

  void attend(Lane&, const AttendCall&);  // keys and values are already stored
  void decode(Lane&, const AttendCall&);  // one row per sequence; stores k and v if the call has them
  DecodePlan decode_plan(Lane&, const AttendCall&, bool chained);

  // Products with the experts chosen by each row. ups: if not empty, the up projections of a gated product. listed: the rows of each
  // expert are still listed from the previous call.
  void multiply_grouped(Lane&, Tensor out, Tensor x, std::span<const Weight> experts, std::span<const Weight> ups, Tensor expert,
                        Activation, bool listed = false);

  template <class T>
  T* scratch(Lane& lane, Scratch::Use use, int64_t n) {
    const size_t bytes = size_t(n) * sizeof(T);
    if (!scratch_.holds(use, bytes)) grow(lane, use, std::max<size_t>(bytes * 5 / 4, 4096));  // single operations, or beyond the plan
    return static_cast<T*>(scratch_.data(use));
  }
  static int64_t sampled_room(int64_t n_out) { return std::max<int64_t>(n_out, 1024); }
  int32_t* sampled(Lane& lane, int n_out) { return scratch<int32_t>(lane, Scratch::sampled_tokens, sampled_room(n_out)); }
  void reserve(Lane&, Scratch::Use, int64_t bytes);
  int64_t scratch_bytes() const { return scratch_.bytes(); }

  const CudaOptions options;
  LaunchLog log;
  Launch launch;
  const Choices choices;
  std::string device;                        // description
  std::function<void()> forget_addresses{};  // drops captured graphs and chains
  std::unique_ptr<Cublas> cublas;            // may be null
  std::unique_ptr<StepMemory> step;
  std::unique_ptr<ChainPrograms> chains;
  std::unique_ptr<Tables> tables;

 private:
  Gpu(const CudaOptions&, const cudaDeviceProp&);
  void grow(Lane&, Scratch::Use, size_t bytes);
  Matrix as_bf16(Lane&, const Matrix&);  // unchanged if bf16 and aligned, else a copy
  void multiply_by_library(Lane&, const Product&, Tensor both);

  Scratch scratch_;
};

}  // namespace mr::cuda
