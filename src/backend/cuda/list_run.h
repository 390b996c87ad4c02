// One run of a program's list on a GPU. Its marks: what is one kernel there. What an operation prepares for a later one (half of a
// norm, the rows of each expert) and the operations that wait to be launched as one chain are known to the run alone.
#pragma once

#include <vector>

#include "backend/cuda/gpu.h"

namespace mr::cuda {

class ListRun final : public Lane {
 public:
  ListRun(Gpu&, Backend& plain, const Bound&, const Batch&, const StateMemory&);

  bool take(const Mark&);
  void run(int op);
  void flush();  // launches what waits
  const Launch& at() override;

 private:
  // A product or scan whose result is to be normed leaves, beside it, what the product after it needs to do the norm in passing.
  struct HalfNormed {
    int norm = -1;  // the operation that need not run
    Matrix x;       // bf16
    const float* squares = nullptr;
    int64_t n_squares = 0;
  };
  struct Routed {     // the choice of experts that waits in the chain
    int expert = -1;  // value
    int normed = -1;  // what it was made for
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

  // Lets the product that reads a norm do its second half, where it can: p reads what the first half left.
  bool share_norm(int norm, Product& p, const Weight&);
  bool halve(int norm);  // does the first half now
  // Half of the norm after operation `writer`, which makes y in parts of so many columns, or in at least `least` parts; may be none.
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
  DecodePlan plan_;  // of the attentions of several rows that wait
  HalfNormed half_;
  int half_turn_ = 0;  // two places in turn: who reads one may write the other
  int writer_ = -1;    // the operation that the product at hand is for
  Routed routed_;
  int listed_ = -1;  // the choice of experts (a value) whose rows are listed
};

}  // namespace mr::cuda
