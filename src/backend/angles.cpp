#include "backend/angles.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace mr {

// Dynamic NTK scaling: the base grows with the length beyond the trained one.
static void dynamic_frequencies(const RopeTable& rope, int length, std::vector<float>& inv_freq) {
  double growth = double(rope.factor) * length / rope.original - (rope.factor - 1.0);
  double base = rope.theta * std::pow(growth, rope.dim / (rope.dim - 2.0));
  inv_freq.resize(size_t(rope.dim / 2));
  for (int i = 0; i < rope.dim / 2; i++) inv_freq[size_t(i)] = float(1 / std::pow(base, 2.0 * i / rope.dim));
}

void fill_angles(Tensor out, const RopeTable& rope, const Batch& batch) {
  const int half = rope.dim / 2;
  check(out.shape[0] == batch.n_tokens && out.shape[1] == rope.dim && int(rope.inv_freq.size()) == half,
        "rotary angles of shape {} do not fit {} rows of {} dimensions with {} frequencies", shape_string(out), batch.n_tokens, rope.dim,
        rope.inv_freq.size());
  std::vector<float> scaled;
  int scaled_length = -1;
  for (int s = 0; s < batch.n_seqs; s++) {
    for (int r = batch.row_begin[s]; r < batch.row_begin[s + 1]; r++) {
      int length = std::max(batch.prompt_len ? batch.prompt_len[s] : 0, batch.position[r] + 1);
      const float* inv_freq = rope.inv_freq.data();
      if (rope.length == RopeTable::Length::longrope && length > rope.original) inv_freq = rope.long_inv_freq.data();
      if (rope.length == RopeTable::Length::dynamic && length > rope.original) {
        if (length != scaled_length) dynamic_frequencies(rope, scaled_length = length, scaled);
        inv_freq = scaled.data();
      }
      float* row = out.row<float>(r);
      for (int i = 0; i < half; i++) {
        float angle = float(batch.position[r]) * inv_freq[i];
        row[i] = float(std::cos(double(angle))) * rope.scale;
        row[half + i] = float(std::sin(double(angle))) * rope.scale;
      }
    }
  }
}

}  // namespace mr
