// What operations and runs on a GPU share: where they are launched, memory for themselves, libraries, tables. And which kernel an
// operation takes, chosen with the numbers of the step.
#pragma once

#include <functional>
#include <memory>

#include "backend/cuda/chain/programs.h"
#include "backend/cuda/choices.h"
#include "backend/cuda/gemm/cublas.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/step_memory.h"
#include "backend/cuda/tables.h"
#include "backend/cuda/views.h"

namespace mr::cuda {

// Who launches. An operation by itself does so at once; a run first launches what waits in its chain.
class Lane {
 public:
  virtual ~Lane() = default;
  virtual const Launch& at() = 0;
  virtual bool wait(Product&) { return false; }  // a product of few rows may wait in a chain instead
};

// Memory that operations need for themselves, by purpose. It grows when nothing is being captured.
class Scratch {
 public:
  enum Use { x_bf16, half_norm_x, half_norm_x2, squares, squares2, partial, arrived, sampled_tokens, unpacked, groups, n_uses };
  ~Scratch();
  bool holds(Use use, size_t bytes) const { return bytes <= pieces_[use].bytes; }
  void* data(Use use) const { return pieces_[use].data; }
  int64_t bytes() const;  // of all pieces
  // Nobody may know the old address any more. What lay there is lost, but for the sampled tokens: the step that needs more room for its
  // own begins by reading those of the step before.
  void grow(Use, size_t bytes, cudaStream_t);

 private:
  struct Piece {
    void* data = nullptr;
    size_t bytes = 0;
  };
  Piece pieces_[n_uses];
};

inline constexpr int64_t kPackedRows = 64;  // more are multiplied with the weight unpacked
inline int64_t padded_cols(int64_t cols) { return (cols + 7) / 8 * 8; }
// Elements of the pieces that a decode takes.
inline int64_t partial_floats(int64_t shares, int64_t v_dim) { return shares * kGroup * (v_dim + kPartExtra); }  // of one slot
inline int64_t arrived_room(int64_t n_seqs, int64_t shares) { return std::max<int64_t>(n_seqs * shares, 1 << 16); }

class Gpu {
 public:
  explicit Gpu(const CudaOptions&);
  ~Gpu();

  // out = what the product says. both [T, out], bf16: room for both halves of a gated one.
  void multiply(Lane&, Product, const Weight&, Tensor both = {});
  void multiply_alone(const Launch&, const Product&) const;  // of few rows, by a kernel of its own
  bool is_one(const Product& p) const { return p.x.rows == 1 && !options.deterministic; }
  bool to_library(const Product&) const;

  void attend(Lane&, const AttendCall&);  // keys and values are stored
  void decode(Lane&, const AttendCall&);  // of one row a sequence; stores them where the call has them
  DecodePlan decode_plan(Lane&, const AttendCall&, bool chained);

  // Products of the experts that rows chose. ups: may be empty; else the second halves of gated ones. listed: the rows of each expert
  // were listed by the call before.
  void multiply_grouped(Lane&, Tensor out, Tensor x, std::span<const Weight> experts, std::span<const Weight> ups, Tensor expert,
                        Activation, bool listed = false);

  template <class T>
  T* scratch(Lane& lane, Scratch::Use use, int64_t n) {
    const size_t bytes = size_t(n) * sizeof(T);
    if (!scratch_.holds(use, bytes)) grow(lane, use, std::max<size_t>(bytes * 5 / 4, 4096));  // of operations alone, or more than planned
    return static_cast<T*>(scratch_.data(use));
  }
  static int64_t sampled_room(int64_t n_out) { return std::max<int64_t>(n_out, 1024); }
  int32_t* sampled(Lane& lane, int n_out) { return scratch<int32_t>(lane, Scratch::sampled_tokens, sampled_room(n_out)); }
  void reserve(Lane&, Scratch::Use, int64_t bytes);
  int64_t scratch_bytes() const { return scratch_.bytes(); }  // that were taken

  const CudaOptions options;
  const Choices choices;
  LaunchLog log;
  Launch launch;
  std::string device;                        // in words
  std::function<void()> forget_addresses{};  // graphs that were captured
  std::unique_ptr<Cublas> cublas;            // may be null
  std::unique_ptr<StepMemory> step;
  std::unique_ptr<ChainPrograms> chains;
  std::unique_ptr<Tables> tables;

 private:
  void grow(Lane&, Scratch::Use, size_t bytes);
  Matrix as_bf16(Lane&, const Matrix&);  // aligned
  void multiply_by_library(Lane&, const Product&, Tensor both);

  Scratch scratch_;
};

}  // namespace mr::cuda
