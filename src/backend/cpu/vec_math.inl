// Elementary functions over Vec: the same operations in the same order on every instruction set. Errors are in units in the
// last place (ulp) against the true value, and are tested.
#pragma once

#include "backend/cpu/vec.h"

namespace {

inline Vec poly(Vec, Vec sum) { return sum; }
template <class... Rest>
inline Vec poly(Vec x, Vec sum, float c, Rest... rest) {
  return poly(x, fma(sum, x, set1(c)), rest...);
}  // Horner, highest first

// Within 2 ulp. 1 at 0; 0 below -87.3; infinite above 88.37; NaN stays.
[[gnu::always_inline]] inline Vec exp(Vec x) {
  Vec y = max(set1(-87.3f), min(set1(88.8f), x));
  Vec n = round(mul(y, set1(1.44269504f)));
  Vec r = fma(n, set1(-0.693145752f), y);  // ln 2 in two parts, the first with trailing zeros
  r = fma(n, set1(-1.42860677e-6f), r);
  Vec p = poly(r, set1(1.9875691500e-4f), 1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f);
  p = add(fma(mul(r, r), p, r), set1(1));
  return select_lt(x, set1(-87.3f), zero(), mul(p, exp2i(n)));
}

// Within 3 ulp.
[[gnu::always_inline]] inline Vec tanh(Vec x) {
  Vec a = abs(x), z = mul(x, x);
  Vec p = poly(z, set1(-5.70498872745e-3f), 2.06390887954e-2f, -5.37397155531e-2f, 1.33314422036e-1f, -3.33332819422e-1f);
  Vec small = fma(mul(p, z), x, x);
  Vec big = sub(set1(1), div(set1(2), add(exp(add(a, a)), set1(1))));
  big = select_lt(x, zero(), sub(zero(), big), big);
  return select_lt(a, set1(0.625f), small, big);
}

// log(1 + u) for u in [0, 1], within 3 ulp: 2 artanh(u / (2 + u)), whose argument is at most 1/3.
[[gnu::always_inline]] inline Vec log1p_unit(Vec u) {
  Vec s = div(u, add(u, set1(2))), z = mul(s, s);
  Vec p = poly(z, set1(1 / 15.0f), 1 / 13.0f, 1 / 11.0f, 1 / 9.0f, 1 / 7.0f, 1 / 5.0f, 1 / 3.0f);
  return mul(set1(2), fma(mul(p, z), s, s));
}

[[gnu::always_inline]] inline Vec softplus(Vec x) { return add(max(zero(), x), log1p_unit(exp(sub(zero(), abs(x))))); }

// Absolute error below 3e-7: 1 - exp(-x^2) * polynomial of 1 / (1 + 0.4 x), the form of Hastings (1955).
[[gnu::always_inline]] inline Vec erf(Vec x) {
  Vec a = abs(x), t = div(set1(1), fma(set1(0.4f), a, set1(1)));
  Vec p = poly(t, set1(0.030293483f), -0.34983659f, 1.01516509f, -0.70288008f, 0.66962445f, 0.097098812f, 0.24053483f);
  Vec y = sub(set1(1), mul(mul(p, t), exp(sub(zero(), mul(a, a)))));
  return select_lt(x, zero(), sub(zero(), y), y);
}

[[gnu::always_inline]] inline Vec silu(Vec x) { return div(x, add(set1(1), exp(sub(zero(), x)))); }
[[gnu::always_inline]] inline Vec gelu(Vec x) { return mul(mul(set1(0.5f), x), add(set1(1), erf(mul(x, set1(0.707106781f))))); }
[[gnu::always_inline]] inline Vec gelu_tanh(Vec x) {
  Vec cube = mul(mul(x, x), x);
  return mul(mul(set1(0.5f), x), add(set1(1), tanh(mul(set1(0.797884561f), fma(set1(0.044715f), cube, x)))));
}

// In the order of mr::Activation.
template <int act>
inline Vec activation(Vec x) {
  if constexpr (act == 1) return silu(x);
  if constexpr (act == 2) return gelu(x);
  if constexpr (act == 3) return gelu_tanh(x);
  if constexpr (act == 4) return max(zero(), x);
  if constexpr (act == 5) return mul(max(zero(), x), max(zero(), x));
  return x;
}

}  // namespace
