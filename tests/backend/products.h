// Matrix products of bf16 values against their sums in f64.
#pragma once

#include "backend/on_device.h"

namespace mr::test {

// Sums of n products of bf16 values in f32: each of n additions errs by 2^-24 of the sum of magnitudes at most; tensor cores keep a
// few bits fewer inside a chunk, hence 2^-22.
inline double product_bound(const float* x, const float* w, int64_t n) {
  double magnitude = 0;
  for (int64_t k = 0; k < n; k++) magnitude += std::abs(double(x[k]) * w[k]);
  return (std::sqrt(double(n)) + 4) * 0x1p-22 * magnitude + 1e-30;
}

// One product against its sums in f64; `step`: the rounding of the result. Bits of `parts`: bias; residual; scale, onto y itself.
inline void expect_product(Backend& backend, double step, const Made& w, int rows, int parts) {
  const int out = int(w.weight.out), in = int(w.weight.in);
  Array x({rows, in}, rows % 2 ? 8 : 3), bias({out}), residual({rows, out}), y({rows, out}, out % 8 ? 1 : 8);
  whole(x.fill(2));
  bias.fill(3);
  residual.fill(4);
  y.fill(4);
  Epilogue e;
  if (parts & 1) e.bias = bias;
  if (parts & 2) e.residual = parts & 4 ? y.view : residual.view;
  if (parts & 4) e.scale = 0.3f;
  std::vector<float> before = y.values();
  backend.linear(y, x, w.weight, e);
  for (int r = 0; r < rows; r++)
    for (int o = 0; o < out; o++) {
      const float *xr = x.view.row<float>(r), *wo = w.values.view.row<float>(o);
      double exact = 0;
      for (int k = 0; k < in; k++) exact += double(xr[k]) * wo[k];
      if (parts & 1) exact += bias.data[size_t(o)];
      if (parts & 4) exact *= 0.3f;
      if (parts & 2) exact += before[size_t(r * out + o)];
      ASSERT_NEAR(y.view.row<float>(r)[o], exact, product_bound(xr, wo, in) + (step + 0x1p-22) * std::abs(exact) + 1e-6)
          << rows << " rows, [" << out << ", " << in << "], row " << r << " output " << o << " parts " << parts;
    }
}

}  // namespace mr::test
