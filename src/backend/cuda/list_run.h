// One run of a program's list on a GPU. Accepts the marks that have a fused kernel. The run holds all state between operations: what
// one prepares for a later one (half a norm, the rows of each expert), and the operations deferred to be launched as one chain.
#pragma once

#include <vector>

#include "backend/cuda/gpu.h"

namespace mr::cuda {

class ListRun final : public Lane {
 public:
  ListRun(Gpu&, Backend& plain, const Bound&, const Batch&, const StateMemory&);

  bool take(const Mark&);
  void run(int op);
  void flush();  // launches the deferred operations
  const Launch& at() override;

 private:
  // A product or scan whose result is normalized next also writes the inputs that let the next product apply the norm in its epilogue.
  struct HalfNormed {
    int norm = -1;  // the norm operation that is skipped
    Matrix x;       // bf16
    const float* squares = nullptr;
    int64_t n_squares = 0;
  };
  struct Routed {     // the routing deferred in the chain
    int expert = -1;  // value id
    int normed = -1;  // value id of its normalized input
    float eps = 0;
    HalfNormed half;
  };

  bool norm_linear(const Mark&);
  bool linear_gate(const Mark&);
  bool linear_conv(const Mark&);
  bool attend(const Mark&);
  bool gated_scan(const Mark&);
  bool outer_scan(int first);
  bool selective_scan(const Mark&);
  bool route(const Mark&);
  bool experts_gate(const Mark&);
  bool experts_combine(const Mark&);

  Product product_of(const LinearOp&, Tensor x) const;
  void multiply(int writer, const Product&, const Weight&, Tensor both = {});
  bool wait(Product&) override;
  bool wait(const ChainStep&);
  bool wait(const AttendCall&);
  void alone(const ChainStep&);

  // If possible, fuses the second half of a norm into the product p that reads it: p then reads the first half's outputs.
  bool share_norm(int norm, Product& p, const Weight&);
  bool halve(int norm);  // launches the first half as a separate kernel
  // First half of the norm after operation `writer`, which writes y in parts of `part` columns, at least `least` parts; may be empty.
  HalfNorm half_norm(int writer, const Matrix& y, int part, int64_t least = 0);
  bool one_row_of(Tensor x, Tensor expert, const Weight&) const;
  ExpertsStep chosen(Tensor x, std::span<const Weight>, Tensor expert);
  template <class T>
  const T* op(int i) const {
    return bound_.list().ops[size_t(i)].get<T>();
  }

  Gpu& gpu_;
  Backend& plain_;
  const Bound& bound_;
  const Batch& batch_;
  const StateMemory& state_;
  std::vector<ChainStep> waiting_;
  DecodePlan plan_;  // of the deferred attentions of several rows
  HalfNormed half_;
  int half_turn_ = 0;  // double buffering: a product may read one half norm while it writes the next
  int writer_ = -1;    // the operation that the current product implements
  Routed routed_;
  int listed_ = -1;  // id of the `expert` value whose rows are listed by expert
};

}  // namespace mr::cuda
