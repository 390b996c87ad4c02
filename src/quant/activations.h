// Activations that a format rounds before a product, as part of its definition (W8A8, FP8, LLM.int8()). A row's scales come from the row
// alone.
#pragma once

#include <cstdint>

namespace mr {

struct ActivationRounding {
  enum class To : uint8_t { none, integer, e4m3 } to = To::none;
  int bits = 8;        // of integers
  int64_t group = 0;   // inputs that share a scale; 0: the row
  float scale = 0;     // of every row; 0: found in each
  float outliers = 0;  // LLM.int8(): inputs of at least this magnitude are not rounded; 0: no such rule

  bool operator==(const ActivationRounding&) const = default;
  explicit operator bool() const { return to != To::none; }
};

// One row: the values that the rounded numbers stand for. Where a group holds a NaN or an infinity, it becomes NaN.
void round_activations(const ActivationRounding&, const float* x, int64_t in, float* to);

}  // namespace mr
