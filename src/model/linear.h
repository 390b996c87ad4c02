// A linear layer: one or more packed weights that share their input, and a bias.
#pragma once

#include <vector>

#include "backend/backend.h"
#include "core/arena.h"

namespace mr {

struct Step;

class Linear {
 public:
  Linear() = default;
  Linear(std::vector<Weight> parts, Tensor bias) : parts_(std::move(parts)), bias_(bias) {}

  int64_t out() const;
  int64_t bytes() const;
  Tensor operator()(Tensor x, Step&) const;                              // [T, in] -> [T, out], in the arena
  Tensor gated(Tensor x, Activation, Step&) const;                       // [T, in] -> [T, out / 2]: act(first half) * second half
  void into(Tensor out, Tensor x, Step&, Epilogue epilogue = {}) const;  // epilogue's bias is this layer's own

 private:
  std::vector<Weight> parts_;
  Tensor bias_;  // f32 [out], may be empty
};

}  // namespace mr
