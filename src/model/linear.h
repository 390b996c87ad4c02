// A linear layer: one or more packed weights that share their input, and a bias.
#pragma once

#include <vector>

#include "backend/backend.h"
#include "core/arena.h"

namespace mr {

struct Step;

// What a linear layer reads: x, or its norm, which the layer may take along on its way.
struct Input {
  Tensor x;                    // [T, in]; with a norm: f32
  const Norm* norm = nullptr;  // may be null
  Input(Tensor x) : x(x) {}
  Input(Tensor x, const Norm& norm) : x(x), norm(&norm) {}
  int64_t rows() const { return x.shape[0]; }
  Tensor tensor(Step&) const;  // x, or its norm in the arena
};

class Linear {
 public:
  Linear() = default;
  Linear(std::vector<Weight> parts, Tensor bias) : parts_(std::move(parts)), bias_(bias) {}

  int64_t out() const;
  int64_t bytes() const;
  Tensor operator()(const Input& x, Step&) const;                              // [T, in] -> [T, out], in the arena
  Tensor gated(const Input& x, Activation, Step&) const;                       // [T, in] -> [T, out / 2]: act(first half) * second half
  void into(Tensor out, const Input& x, Step&, Epilogue epilogue = {}) const;  // epilogue's bias is this layer's own
  // into(), then a short convolution of C columns of `out`, from `first` on, to conv_out [T, C]: those of `out` may not be written
  void into_conv(Tensor out, const Input& x, Tensor conv_out, int64_t first, const ShortConv&, Step&) const;
  void announce(Step&) const;                                                  // that it reads what the next gated() or attention makes

 private:
  std::vector<Weight> parts_;
  Tensor bias_;  // f32 [out], may be empty
};

}  // namespace mr
