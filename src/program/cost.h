// Flops and bytes of each operation in a step, computed from the list that runs.
#pragma once

#include <span>

#include "program/program.h"

namespace mr {

// Sequences of equal shape in a step. Symbols: B sequences, T new tokens of each, S context.
struct Phase {
  double batch = 1;    // B
  double rows = 1;     // T: 1 in decode, the whole prompt in prefill
  double context = 1;  // S: tokens that the last row sees, itself included
  double outputs = 1;  // rows per sequence that reach the output layer: all when verifying drafts, none inside a prompt

  static Phase generation(double batch, double context) { return {batch, 1, context}; }
  static Phase prefill(double batch, double context) { return {batch, context, context}; }
};

// All sequences of a step.
struct BatchShape {
  std::span<const Phase> parts;
  double tokens = 0, outputs = 0, sequences = 0;

  explicit BatchShape(std::span<const Phase>);
  double pairs(int window) const;  // query-key pairs per head, with a causal mask and the window
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

// activation: bytes per activation; 0: activations stay in caches and are not counted.
Cost cost(const Op&, const Program&, const BatchShape&, double activation);
inline Cost cost(const Op& op, const Program& program, const BatchShape& shape) {
  return cost(op, program, shape, double(size_of(program.activation)));
}
Cost cost(const Program&, const BatchShape&);  // of the list that such a step runs

inline constexpr double diag_scan_flops = 7, outer_scan_flops = 5;  // per state value and token: decay, input, output

// Expected number of experts used by at least one of `rows` tokens, if each uses `used` at random: E (1 - (1 - k/E)^rows).
double experts_read(double experts, double used, double rows);

}  // namespace mr
