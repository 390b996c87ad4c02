// A linear layer: one or more packed weights that share their input, and a bias.
#pragma once

#include <string>
#include <vector>

#include "program/recorder.h"

namespace mr {

class Linear {
 public:
  Linear() = default;
  Linear(std::string name, std::vector<Weight> parts, Tensor bias) : name_(std::move(name)), parts_(std::move(parts)), bias_(bias) {}

  // [T, in] -> [T, out]: scale * (x . weight^T + bias)
  Value operator()(Recorder& r, Value x, float scale = 1, ValueType type = ValueType::activation) const {
    return r.linear(x, parts_, {name_, bias_, scale, type});
  }

 private:
  std::string name_;  // of its parts: "q+k+v"
  std::vector<Weight> parts_;
  Tensor bias_;  // f32 [out], may be empty
};

}  // namespace mr
