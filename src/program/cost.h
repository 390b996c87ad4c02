// What an operation must compute and move in a step, counted from the list that runs.
#pragma once

#include <span>

#include "program/program.h"

namespace mr {

// Sequences that do the same in a step. Symbols: B sequences, T new tokens of each, S context.
struct Phase {
  double batch = 1;    // B
  double rows = 1;     // T: 1 in generation, the whole prompt in prefill
  double context = 1;  // S: tokens that the last row sees, itself included
  double outputs = 1;  // rows of each sequence that pass through the output layer: all when drafts are verified, none inside a prompt

  static Phase generation(double batch, double context) { return {batch, 1, context}; }
  static Phase prefill(double batch, double context) { return {batch, context, context}; }
};

// All sequences of a step.
struct BatchShape {
  std::span<const Phase> parts;
  double tokens = 0, outputs = 0, sequences = 0;

  explicit BatchShape(std::span<const Phase>);
  double pairs(int window) const;  // query-key pairs of one head: a row sees all before it and itself, at most its window
  double keys(int window) const;   // tokens whose keys and values are read
};

struct Cost {
  double flops = 0;
  double weights = 0;            // bytes read
  double state = 0, kept = 0;    // bytes of state, read and written
  double read = 0, written = 0;  // bytes of activations

  double bytes() const { return weights + state + kept + read + written; }
  Cost& operator+=(const Cost&);
};

// activation: bytes of one value of that type; 0: values stay in caches, and none are counted.
Cost cost(const Op&, const Program&, const BatchShape&, double activation);
inline Cost cost(const Op& op, const Program& program, const BatchShape& shape) {
  return cost(op, program, shape, double(size_of(program.activation)));
}
Cost cost(const Program&, const BatchShape&);  // of the list that such a step takes

inline constexpr double diag_scan_flops = 7, outer_scan_flops = 5;  // of one value of the state and one token: decay, input, output

// Experts that at least one of `rows` tokens uses, when each takes `used` of them evenly: E (1 - (1 - k/E)^rows).
double experts_read(double experts, double used, double rows);

}  // namespace mr
