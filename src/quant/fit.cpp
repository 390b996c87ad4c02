#include "quant/fit.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace mr {

namespace {

constexpr float kWorst = std::numeric_limits<float>::infinity();

int top_of(const Grid& grid) { return (1 << grid.bits) - 1; }

// NaN becomes the lower bound.
float bounded(float x, float low, float high) { return !(x > low) ? low : x < high ? x : high; }

float rounded(float x) {  // to even; of less than 2^22
  constexpr float shift = 12582912;
  return (x + shift) - shift;
}

float extreme_of(const float* x, int n) {
  float extreme = x[0];
  for (int i = 1; i < n; i++)
    if (std::fabs(x[i]) > std::fabs(extreme)) extreme = x[i];
  return extreme;
}

// Eight sums at once, which a compiler may vectorize. n is a multiple of 8.
template <class Term>
float sum(int n, Term term) {
  float lane[8] = {};
  for (int i = 0; i < n; i += 8)
    for (int l = 0; l < 8; l++) lane[l] += term(i + l);
  return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}
float dot(const float* a, const float* b, int n) {
  return sum(n, [&](int i) { return a[i] * b[i]; });
}

// The grid's integers (code - offset, or the table's) nearest to x * inverse.
void to_grid(const Grid& grid, const float* x, int n, float inverse, float* v) {
  if (!grid.table) {
    const float low = float(-grid.offset), high = float(top_of(grid) - grid.offset);
    for (int i = 0; i < n; i++) v[i] = rounded(bounded(x[i] * inverse, low, high));
    return;
  }
  for (int i = 0; i < n; i++) {  // an ascending table
    const float at = x[i] * inverse;
    int code = 0;
    for (int c = 1; c <= top_of(grid); c++) code += at > 0.5f * float(grid.table[c - 1] + grid.table[c]);
    v[i] = grid.table[code];
  }
}

uint8_t code_of(const Grid& grid, float v) {
  if (!grid.table) return uint8_t(int(v) + grid.offset);
  return uint8_t(std::find(grid.table, grid.table + top_of(grid), int8_t(v)) - grid.table);
}

constexpr int kTurns = 3;  // codes for the best scale, then the best scale for those codes

// The scale of least squared error, of the group's integers for scales around the one that lets its largest value be the grid's lowest.
float best_scale(const Grid& grid, const float* x, int n) {
  const float extreme = extreme_of(x, n);
  if (extreme == 0) return 0;
  const float lowest = grid.table ? grid.table[0] : float(-grid.offset), step = grid.table ? float(grid.table[1]) - lowest : 1;
  float best = 0, most = 0, v[BlockCodes::kWeights];
  auto consider = [&](float inverse) {
    to_grid(grid, x, n, inverse, v);
    const float vv = dot(v, v, n), xv = dot(x, v, n);
    if (!(vv > 0 && xv * xv > most * vv)) return;  // the error is x.x - xv^2 / vv
    most = xv * xv / vv;
    best = xv / vv;
  };
  for (int i = -9; i <= 9; i++) consider((lowest - 0.1f * float(i) * step) / extreme);
  for (int i = 0; i < kTurns && best != 0; i++) consider(1 / best);
  return best;
}

struct Line {
  float scale = 0, minimum = 0;  // value = scale * code - minimum
};

// The same with a minimum, which is never negative.
Line best_line(const Grid& grid, const float* x, int n) {
  const auto [least, most] = std::minmax_element(x, x + n);
  const float low = std::min(*least, 0.0f), range = *most - low;
  Line best{0, -low};
  if (!(range > 0)) return best;
  float above[BlockCodes::kWeights], v[BlockCodes::kWeights], error = kWorst;
  auto consider = [&](float base, float inverse) {
    for (int i = 0; i < n; i++) above[i] = x[i] - base;
    to_grid(grid, above, n, inverse, v);
    const float s = sum(n, [&](int i) { return v[i]; }), vv = dot(v, v, n), d = float(n) * vv - s * s;
    if (!(d > 0)) return;
    const float sx = sum(n, [&](int i) { return above[i]; }), xv = dot(above, v, n);
    float scale = (float(n) * xv - sx * s) / d, offset = (vv * sx - s * xv) / d;  // above = scale * v + offset
    if (base + offset > 0) {                                                      // a minimum that would be negative
      offset = -base;
      scale = (xv - offset * s) / vv;
    }
    const float e = sum(n, [&](int i) { return (scale * v[i] + offset - above[i]) * (scale * v[i] + offset - above[i]); });
    if (!(e < error)) return;
    error = e;
    best = {scale, -(base + offset)};
  };
  for (int i = -10; i <= 10; i++) consider(low, (float(top_of(grid)) + 0.1f * float(i)) / range);
  for (int i = 0; i < kTurns && best.scale > 0; i++) consider(-best.minimum, 1 / best.scale);
  return best;
}

// A block of groups whose scales and minima are integers under `scale` and `minimum`.
class Levels {
 public:
  Levels(const Grid& grid, int bits, int weights, const float* x) : grid_(grid), groups_(weights / int(grid.group)), x_(x) {
    low_ = grid.minimum ? 0 : -(1 << (bits - 1));
    high_ = grid.minimum ? (1 << bits) - 1 : (1 << (bits - 1)) - 1;
    for (int g = 0; g < groups_; g++) {
      const float* own = x + g * grid.group;
      wanted_[g] = grid.minimum ? best_line(grid, own, int(grid.group)) : Line{best_scale(grid, own, int(grid.group))};
    }
  }

  void fit(BlockCodes& c) {
    float least = kWorst;
    for (float stretch : {1.0f, 0.97f, 1.04f}) {  // of the scale that lets the largest group's be the largest integer
      BlockCodes own;
      const float error = fit_from(stretch, own);
      if (!(error < least) && least != kWorst) continue;
      least = error;
      c = own;
    }
  }

 private:
  float fit_from(float stretch, BlockCodes& c) {
    first_scales(stretch);
    float error = choose_integers(c);
    for (int turn = 0; turn < 2; turn++) {
      BlockCodes other = c;
      if (!refit_scales(c)) break;
      const float e = choose_integers(other);
      if (!(e < error)) break;
      error = e;
      c = other;
    }
    return error;
  }

  void set_scales(float scale, float minimum) {
    scale_bits_ = f16_from_f32(scale);
    minimum_bits_ = f16_from_f32(minimum);
    scale_ = f32_from_f16(scale_bits_);
    minimum_ = f32_from_f16(minimum_bits_);
  }

  void first_scales(float stretch) {
    float scales[BlockCodes::kGroups], minimum = 0;
    for (int g = 0; g < groups_; g++) {
      scales[g] = wanted_[g].scale;
      minimum = std::max(minimum, wanted_[g].minimum);
    }
    set_scales(stretch * extreme_of(scales, groups_) / float(grid_.minimum ? high_ : low_), stretch * minimum / float(high_));
  }

  // The integers and codes of every group for the block's scales; returns the squared error.
  float choose_integers(BlockCodes& c) const {
    c.scale = scale_bits_;
    c.minimum = minimum_bits_;
    float error = 0;
    for (int g = 0; g < groups_; g++) error += choose_group(g, c);
    return error;
  }

  float choose_group(int g, BlockCodes& c) const {
    const int n = int(grid_.group);
    const float* x = x_ + g * n;
    auto near = [&](float wanted, float unit) { return unit == 0 ? 0 : int(rounded(bounded(wanted / unit, float(low_), float(high_)))); };
    const int scale = near(wanted_[g].scale, scale_), minimum = grid_.minimum ? near(wanted_[g].minimum, minimum_) : 0;
    const int around = grid_.minimum ? 1 : 0;
    float least = kWorst, v[BlockCodes::kWeights], above[BlockCodes::kWeights];
    for (int m = std::max(minimum - around, 0); m <= std::min(minimum + around, high_); m++) {
      const float offset = minimum_ * float(m);
      for (int i = 0; i < n; i++) above[i] = x[i] + offset;
      for (int s = std::max(scale - 1, low_); s <= std::min(scale + 1, high_); s++) {
        const float step = scale_ * float(s);
        to_grid(grid_, above, n, step == 0 ? 0 : 1 / step, v);
        const float e = sum(n, [&](int i) { return (step * v[i] - above[i]) * (step * v[i] - above[i]); });
        if (!(e < least) && least != kWorst) continue;
        least = e;
        c.group_scale[g] = int8_t(s);
        c.group_minimum[g] = int8_t(m);
        for (int i = 0; i < n; i++) c.code[g * n + i] = code_of(grid_, v[i]);
      }
    }
    return least;
  }

  // Least squares for the block's scales with integers and codes given; false: they stay.
  bool refit_scales(const BlockCodes& c) {
    double aa = 0, ab = 0, bb = 0, xa = 0, xb = 0;  // x = scale * a + minimum * b
    for (int i = 0; i < groups_ * grid_.group; i++) {
      const int g = i / int(grid_.group);
      const double v = grid_.table ? grid_.table[c.code[i]] : int(c.code[i]) - grid_.offset;
      const double a = c.group_scale[g] * v, b = grid_.minimum ? -c.group_minimum[g] : 0;
      aa += a * a;
      ab += a * b;
      bb += b * b;
      xa += x_[i] * a;
      xb += x_[i] * b;
    }
    const double det = aa * bb - ab * ab;
    double scale = aa > 0 ? xa / aa : 0, minimum = minimum_;
    if (det > 0) {
      scale = (xa * bb - xb * ab) / det;
      minimum = (xb * aa - xa * ab) / det;
    }
    if (!(scale != 0) || (grid_.minimum && (scale < 0 || minimum < 0))) return false;
    set_scales(float(scale), float(minimum));
    return true;
  }

  const Grid& grid_;
  int groups_, low_, high_;
  const float* x_;
  Line wanted_[BlockCodes::kGroups];
  uint16_t scale_bits_ = 0, minimum_bits_ = 0;
  float scale_ = 0, minimum_ = 0;
};

}  // namespace

void fit_range(const Grid& grid, int weights, const float* x, BlockCodes& c) {
  const float top = float(top_of(grid));
  float low = 0, scale = extreme_of(x, weights) / float(-grid.offset), shift = float(grid.offset) + 0.5f;
  if (grid.minimum) {
    const auto [least, most] = std::minmax_element(x, x + weights);
    low = *least;
    scale = (*most - low) / top;
    shift = 0.5f;
  }
  const float inverse = scale == 0 ? 0 : 1 / scale;
  c.scale = f16_from_f32(scale);
  c.minimum = f16_from_f32(low);
  for (int i = 0; i < weights; i++) c.code[i] = uint8_t(bounded(std::trunc((x[i] - low) * inverse + shift), 0, top));
}

void fit_scale(const Grid& grid, int weights, const float* x, BlockCodes& c) {
  c.scale = f16_from_f32(best_scale(grid, x, weights));
  const float scale = f32_from_f16(c.scale);
  float v[BlockCodes::kWeights];
  to_grid(grid, x, weights, scale == 0 ? 0 : 1 / scale, v);
  for (int i = 0; i < weights; i++) c.code[i] = code_of(grid, v[i]);
}

void fit_exponent(const Grid& grid, int weights, const float* x, BlockCodes& c) {
  constexpr float bias = 127, largest = 2;  // 6 = 1.5 * 2^2
  const float extreme = std::fabs(extreme_of(x, weights));
  c.scale = extreme > 0 ? uint16_t(bounded(std::floor(std::log2(extreme)) - largest + bias, 0, 254)) : uint16_t(0);
  const float half = scale_of(grid.scale, c.scale);
  for (int i = 0; i < weights; i++) {
    int best = 0;
    for (int code = 1; code <= top_of(grid); code++)
      if (std::fabs(half * float(grid.table[code]) - x[i]) < std::fabs(half * float(grid.table[best]) - x[i])) best = code;
    c.code[i] = uint8_t(best);
  }
}

void fit_levels(const Grid& grid, int bits, int weights, const float* x, BlockCodes& c) { Levels(grid, bits, weights, x).fit(c); }

}  // namespace mr
