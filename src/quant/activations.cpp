#include "quant/activations.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace mr {

// To the nearest value of E4M3, ties to even; beyond 448 it saturates.
static float nearest_e4m3(float x) {
  x = std::clamp(x, -448.0f, 448.0f);
  const uint32_t exponent = std::max(std::bit_cast<uint32_t>(x) >> 23 & 0xff, 121u);  // 2^-6: below it steps no longer shrink
  const float step = std::bit_cast<float>((exponent - 3) << 23);
  return std::nearbyint(x / step) * step;
}

static float max_magnitude(const float* x, int64_t n, float below) {
  float largest = 0;
  for (int64_t i = 0; i < n; i++) {
    const float magnitude = std::fabs(x[i]);
    if (!(magnitude <= std::numeric_limits<float>::max())) return std::numeric_limits<float>::infinity();
    if (below == 0 || magnitude < below) largest = std::max(largest, magnitude);
  }
  return largest;
}

static void round_group(const ActivationRounding& r, const float* x, int64_t n, float* to) {
  const float largest = max_magnitude(x, n, r.outliers);
  if (std::isinf(largest)) return void(std::fill_n(to, n, std::numeric_limits<float>::quiet_NaN()));
  if (r.outliers > 0) {  // bitsandbytes: to -127 … 127
    const float steps = 127 / largest;
    for (int64_t i = 0; i < n; i++)
      to[i] = std::fabs(x[i]) >= r.outliers ? x[i] : largest == 0 ? 0 : std::nearbyint(x[i] * steps) * largest / 127;
    return;
  }
  const float most = float(1 << (r.bits - 1)), half = r.to == ActivationRounding::To::e4m3 ? 448 : most - 0.5f;
  const float scale = r.scale != 0 ? r.scale : largest / half;
  for (int64_t i = 0; i < n; i++) {
    const float scaled = scale == 0 ? 0 : x[i] / scale;
    to[i] = scale * (r.to == ActivationRounding::To::e4m3 ? nearest_e4m3(scaled) : std::nearbyint(std::clamp(scaled, -most, most - 1)));
  }
}

void round_activations(const ActivationRounding& r, const float* x, int64_t in, float* to) {
  const int64_t group = r.group ? r.group : in;
  for (int64_t k = 0; k < in; k += group) round_group(r, x + k, std::min(group, in - k), to + k);
}

}  // namespace mr
