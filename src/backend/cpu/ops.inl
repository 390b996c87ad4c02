// The operations over rows, written once over Vec and included by each instruction set's translation unit. Tails are masked
// vectors, so an element's bits do not depend on where its row ends. `flatten` keeps every Vec in registers: left to itself, the
// compiler's inlining depends on the size of the translation unit.
#pragma once

#include "backend/cpu/op_kernels.h"
#include "backend/cpu/vec.h"
#include "backend/cpu/vec_math.inl"

namespace {
namespace ops {

inline Vec load_some(const float* p, int64_t n) { return n >= kLanes ? load(p) : load_n(p, int(n)); }
inline void store_some(float* p, Vec v, int64_t n) {
  if (n >= kLanes)
    store(p, v);
  else
    store_n(p, v, int(n));
}

inline Vec first_lanes(Vec v, int n) {  // the rest is 0
  float lanes[kLanes];
  store(lanes, v);
  return load_n(lanes, n);
}

// Calls f(i, n) for each vector at i, of which n lanes are valid.
template <class F>
inline void each(int64_t n, F f) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) f(i, int64_t(kLanes));
  if (i < n) f(i, n - i);
}

// Calls f with the activation as a compile-time constant.
template <int act>
struct Act {};
template <class F>
inline void with_activation(int act, F f) {
  switch (act) {
    case 0:
      f(Act<0>{});
      break;
    case 1:
      f(Act<1>{});
      break;
    case 2:
      f(Act<2>{});
      break;
    case 3:
      f(Act<3>{});
      break;
    case 4:
      f(Act<4>{});
      break;
    default:
      f(Act<5>{});
      break;
  }
}

// Sum of f(i, n) over a row in four chains, vector i / 16 going to chain i / 16 % 4.
template <class F>
inline float row_sum(int64_t n, F f) {
  Vec s0 = zero(), s1 = zero(), s2 = zero(), s3 = zero();
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    s0 = f(s0, i, kLanes);
    s1 = f(s1, i + kLanes, kLanes);
    s2 = f(s2, i + 2 * kLanes, kLanes);
    s3 = f(s3, i + 3 * kLanes, kLanes);
  }
  if (i < n) s0 = f(s0, i, n - i);
  if (i + kLanes < n) s1 = f(s1, i + kLanes, n - i - kLanes);
  if (i + 2 * kLanes < n) s2 = f(s2, i + 2 * kLanes, n - i - 2 * kLanes);
  if (i + 3 * kLanes < n) s3 = f(s3, i + 3 * kLanes, n - i - 3 * kLanes);
  return sum(add(add(s0, s1), add(s2, s3)));
}

inline float mean_of(const float* x, int64_t n) {
  return row_sum(n, [=](Vec s, int64_t i, int64_t m) { return add(s, load_some(x + i, m)); }) / float(n);
}
inline float mean_square_of(const float* x, int64_t n) {
  return row_sum(n,
                 [=](Vec s, int64_t i, int64_t m) {
                   Vec v = load_some(x + i, m);
                   return fma(v, v, s);
                 }) /
         float(n);
}
inline float mean_square_around(const float* x, int64_t n, Vec center) {
  return row_sum(n,
                 [=](Vec s, int64_t i, int64_t m) {
                   Vec v = sub(load_some(x + i, m), m >= kLanes ? center : first_lanes(center, int(m)));
                   return fma(v, v, s);
                 }) /
         float(n);
}

[[gnu::flatten]] float mean_square(const float* x, int64_t n, bool centered) {
  return centered ? mean_square_around(x, n, set1(mean_of(x, n))) : mean_square_of(x, n);
}

[[gnu::flatten]] void norm(float* out, const float* x, const mr::NormRow& a) {
  const int64_t n = a.n;
  const bool layer = a.kind == 1;
  const Vec center = set1(layer ? mean_of(x, n) : 0);
  float scale = 1;
  if (a.kind != 2) scale = 1 / __builtin_sqrtf((layer ? mean_square_around(x, n, center) : mean_square_of(x, n)) + a.eps);
  const Vec inverse = set1(scale), offset = set1(a.offset);
  each(n, [=](int64_t i, int64_t m) {
    Vec v = load_some(x + i, m);
    if (layer) v = sub(v, center);
    v = mul(v, inverse);
    if (a.weight) v = mul(v, a.offset == 0 ? load_some(a.weight + i, m) : add(offset, load_some(a.weight + i, m)));
    if (a.bias) v = add(v, load_some(a.bias + i, m));
    store_some(out + i, v, m);
  });
}

[[gnu::flatten]] void add_scaled(float* into, const float* x, float scale, int64_t n) {
  const Vec s = set1(scale);
  each(n, [=](int64_t i, int64_t m) { store_some(into + i, fma(s, load_some(x + i, m), load_some(into + i, m)), m); });
}

[[gnu::flatten]] void combine(float* out, const float* x, int64_t stride, const float* weight, int64_t k, int64_t n, bool adds) {
  each(n, [=](int64_t i, int64_t m) {
    Vec s = adds ? load_some(out + i, m) : zero();
    for (int64_t j = 0; j < k; j++) s = fma(set1(weight[j]), load_some(x + j * stride + i, m), s);
    store_some(out + i, s, m);
  });
}

[[gnu::flatten]] void gate(float* out, const float* g, const float* up, int64_t n, int act) {
  with_activation(act, [=]<int a>(Act<a>) {
    each(n, [=](int64_t i, int64_t m) { store_some(out + i, mul(activation<a>(load_some(g + i, m)), load_some(up + i, m)), m); });
  });
}

[[gnu::flatten]] void activate(float* x, int64_t n, int act) {
  with_activation(act,
                  [=]<int a>(Act<a>) { each(n, [=](int64_t i, int64_t m) { store_some(x + i, activation<a>(load_some(x + i, m)), m); }); });
}

[[gnu::flatten]] void softplus_row(float* x, const float* bias, int64_t n) {
  each(n, [=](int64_t i, int64_t m) {
    Vec v = load_some(x + i, m);
    if (bias) v = add(v, load_some(bias + i, m));
    store_some(x + i, softplus(v), m);
  });
}

inline Vec capped(Vec x, Vec cap) { return mul(cap, tanh(div(x, cap))); }

[[gnu::flatten]] void softcap(float* x, float cap, int64_t n) {
  each(n, [=](int64_t i, int64_t m) { store_some(x + i, capped(load_some(x + i, m), set1(cap)), m); });
}

[[gnu::flatten]] void exp_row(float* x, int64_t n) {
  each(n, [=](int64_t i, int64_t m) { store_some(x + i, exp(load_some(x + i, m)), m); });
}
[[gnu::flatten]] void tanh_row(float* x, int64_t n) {
  each(n, [=](int64_t i, int64_t m) { store_some(x + i, tanh(load_some(x + i, m)), m); });
}

// a cos - b sin, b cos + a sin: one product rounded, the other fused.
[[gnu::flatten]] void rope(float* x, const float* cosine, const float* sine, int64_t half, bool interleaved) {
  if (interleaved) {
    for (int64_t i = 0; i < half; i++) {
      float a = x[2 * i], b = x[2 * i + 1];
      x[2 * i] = __builtin_fmaf(a, cosine[i], -(b * sine[i]));
      x[2 * i + 1] = __builtin_fmaf(b, cosine[i], a * sine[i]);
    }
    return;
  }
  each(half, [=](int64_t i, int64_t m) {
    Vec a = load_some(x + i, m), b = load_some(x + half + i, m), c = load_some(cosine + i, m), s = load_some(sine + i, m);
    store_some(x + i, fma(a, c, sub(zero(), mul(b, s))), m);
    store_some(x + half + i, fma(b, c, mul(a, s)), m);
  });
}

// One byte for each value divided by the scale: code(value).
template <class Code>
inline void store_codes(uint8_t* to, const float* x, int64_t n, int64_t stride, float scale, Code code) {
  const Vec by = set1(scale);
  each(n, [=](int64_t i, int64_t m) {
    float lanes[kLanes] = {};
    if (scale > 0) store(lanes, div(load_some(x + i, m), by));  // 0: all values are; NaN: whatever the codes are
    uint8_t codes[kLanes];
    for (int j = 0; j < kLanes; j++) codes[j] = code(lanes[j]);
    for (int64_t j = 0; j < m; j++) to[(i + j) * stride] = codes[j];
  });
}

// Two values to a byte, the first in its lower half.
inline void store_pairs(uint8_t* to, const float* x, int64_t n, int64_t stride, float scale) {
  const Vec by = set1(scale);
  each(n, [=](int64_t i, int64_t m) {
    float lanes[kLanes] = {};
    if (scale > 0) store(lanes, round(div(load_some(x + i, m), by)));
    for (int64_t j = 0; j < m; j += 2) to[(i + j) / 2 * stride] = uint8_t((int(lanes[j]) + 8) | (int(lanes[j + 1]) + 8) << 4);
  });
}

template <class Store>
inline void store_halves(uint16_t* to, const float* x, int64_t n, int64_t stride, Store store_16) {
  each(n, [=](int64_t i, int64_t m) {
    uint16_t h[kLanes];
    store_16(h, load_some(x + i, m));
    for (int64_t j = 0; j < m; j++) to[(i + j) * stride] = h[j];
  });
}

[[gnu::flatten]] void store_rounded(void* to, const float* x, int64_t n, int64_t stride, mr::StoredAs type, float scale) {
  uint8_t* const bytes = static_cast<uint8_t*>(to);
  uint16_t* const halves = static_cast<uint16_t*>(to);
  switch (type) {
    case mr::kF32:
      for (int64_t i = 0; i < n; i++) static_cast<float*>(to)[i * stride] = x[i];
      break;
    case mr::kF16:
      store_halves(halves, x, n, stride, [](uint16_t* p, Vec v) { store_f16(p, v); });
      break;
    case mr::kBf16:
      store_halves(halves, x, n, stride, [](uint16_t* p, Vec v) { store_bf16(p, v); });
      break;
    case mr::kE4m3:
      store_codes(bytes, x, n, stride, scale, [](float v) { return mr::e4m3_from_f32(v); });
      break;
    case mr::kE5m2:
      store_codes(bytes, x, n, stride, scale, [](float v) { return mr::e5m2_from_f32(v); });
      break;
    case mr::kI8:
      store_codes(bytes, x, n, stride, scale, [](float v) { return uint8_t(int8_t(__builtin_rintf(v))); });
      break;
    case mr::kI4:
      store_pairs(bytes, x, n, stride, scale);
      break;
  }
}

// A state as it is stored. Between the rows of a step it is, too: each reads what another step would.
template <mr::StoredAs type>
struct State {
  uint16_t* p;
  Vec load(int64_t i, int64_t m) const {
    uint16_t some[kLanes] = {};
    const uint16_t* from = p + i;
    if (m < kLanes) {
      for (int64_t j = 0; j < m; j++) some[j] = from[j];
      from = some;
    }
    return type == mr::kF16 ? load_f16(from) : load_bf16(from);
  }
  Vec store(int64_t i, Vec v, int64_t m) const {  // returns what is left of v
    uint16_t some[kLanes];
    uint16_t* to = m < kLanes ? some : p + i;
    type == mr::kF16 ? store_f16(to, v) : store_bf16(to, v);
    for (int64_t j = 0; m < kLanes && j < m; j++) p[i + j] = some[j];
    return type == mr::kF16 ? load_f16(to) : load_bf16(to);
  }
  State at(int64_t i) const { return {p + i}; }
  explicit operator bool() const { return p; }
};
template <>
struct State<mr::kF32> {
  float* p;
  Vec load(int64_t i, int64_t m) const { return load_some(p + i, m); }
  Vec store(int64_t i, Vec v, int64_t m) const {
    store_some(p + i, v, m);
    return v;
  }
  State at(int64_t i) const { return {p + i}; }
  explicit operator bool() const { return p; }
};

template <mr::StoredAs type>
inline State<type> state_at(const void* p, int64_t i = 0) {
  return p ? State<type>{static_cast<decltype(State<type>::p)>(const_cast<void*>(p))}.at(i) : State<type>{nullptr};
}

// The state of row r's parent.
template <mr::StoredAs type>
inline State<type> state_before(const mr::RecurrentRows& rows, int r, State<type> source, int64_t size) {
  const State<type> scratch = state_at<type>(rows.scratch);
  if (!rows.parent) return r ? scratch : source;
  return rows.parent[r] < 0 ? source : scratch.at(rows.parent[r] * size);
}
template <mr::StoredAs type>
inline State<type> state_after(const mr::RecurrentRows& rows, int r, int64_t size) {
  return state_at<type>(rows.scratch, rows.parent ? r * size : 0);
}
// The state that a tree starts from: a later branch still reads it after an earlier row may have stored to the same slot.
template <mr::StoredAs type>
inline State<type> state_first(const mr::RecurrentRows& rows, State<type> source, int64_t size) {
  if (!rows.parent) return source;
  const State<type> copy = state_at<type>(rows.scratch, int64_t(rows.rows) * size);
  for (int64_t i = 0; i < size; i++) copy.p[i] = source.p[i];
  return copy;
}

// A state here is the last width - 1 inputs of 16 channels, oldest first; in a slot, consecutive inputs are `channels` apart.
[[gnu::flatten]] void conv(const mr::ConvCall& a) {
  constexpr int kMaxWidth = 16;
  const int past = a.width - 1;
  const int64_t size = int64_t(past) * kLanes;
  for (int64_t c = a.first; c < a.first + a.n; c += kLanes) {
    const int m = int(a.first + a.n - c < kLanes ? a.first + a.n - c : kLanes);
    float weight[kMaxWidth][kLanes] = {}, source[kMaxWidth * kLanes] = {};
    for (int i = 0; i < m; i++)
      for (int j = 0; j < a.width; j++) weight[j][i] = a.weight[(c + i) * a.width + j];
    const float* before_all = static_cast<const float*>(a.rows.source);
    for (int j = 0; j < past; j++) store(source + j * kLanes, load_some(before_all + j * a.channels + c, m));
    const Vec bias = a.bias ? load_some(a.bias + c, m) : zero();
    for (int r = 0; r < a.rows.rows; r++) {
      const float* before = state_before<mr::kF32>(a.rows, r, {source}, size).p;
      float* after = state_after<mr::kF32>(a.rows, r, size).p;
      const Vec x = load_some(a.x + r * a.x_stride + c, m);
      Vec s = bias;
      for (int j = 0; j < past; j++) {
        Vec v = load(before + j * kLanes);
        s = fma(load(weight[j]), v, s);
        if (j) store(after + (j - 1) * kLanes, v);
      }
      if (past) store(after + (past - 1) * kLanes, x);
      s = fma(load(weight[past]), x, s);
      with_activation(a.act, [&]<int act>(Act<act>) { store_some(a.out + r * a.out_stride + c, activation<act>(s), m); });
      if (float* to = static_cast<float*>(a.rows.store[r]))
        for (int j = 0; j < past; j++) store_some(to + j * a.channels + c, load(after + j * kLanes), m);
    }
  }
}

// A channel's state of at most 16 values stays in a register: G independent channels, token by token.
template <mr::StoredAs type, int G>
inline void scan_chain(const mr::ScanCall& a, int64_t c) {
  const int n = a.n_state;
  Vec h[G], rate[G];
  for (int g = 0; g < G; g++) {
    h[g] = state_at<type>(a.rows.source).load((c + g) * n, n);
    rate[g] = load_some(a.a + (c + g) * n, n);
  }
  uint16_t last[G][kLanes];  // where a state is rounded that no slot receives
  for (int r = 0; r < a.rows.rows; r++) {
    const Vec b = load_some(a.b + r * a.b_stride, n), out_c = load_some(a.c + r * a.c_stride, n);
    const State<type> to = state_at<type>(a.rows.store[r]);
    for (int g = 0; g < G; g++) {
      const float in = a.x[r * a.x_stride + c + g];
      const Vec dt = set1(a.dt[r * a.dt_stride + c + g]);
      h[g] = fma(exp(mul(dt, rate[g])), h[g], mul(mul(dt, b), set1(in)));
      if (to)
        h[g] = to.store((c + g) * n, h[g], n);
      else if constexpr (type != mr::kF32)
        h[g] = State<type>{last[g]}.store(0, h[g], n);
      const float d = a.d ? a.d[c + g] * in : 0;
      a.out[r * a.out_stride + c + g] = sum(fma(out_c, h[g], zero())) + d;
    }
  }
}

// The same for states of any size, and for trees.
template <mr::StoredAs type>
inline void scan_channel(const mr::ScanCall& a, int64_t c) {
  const int n = a.n_state;
  const float* rates = a.a + c * n;
  const State<type> source = state_first<type>(a.rows, state_at<type>(a.rows.source, c * n), n);
  for (int r = 0; r < a.rows.rows; r++) {
    const State<type> before = state_before<type>(a.rows, r, source, n), after = state_after<type>(a.rows, r, n);
    const State<type> to = state_at<type>(a.rows.store[r], c * n);
    const float in = a.x[r * a.x_stride + c];
    const Vec dt = set1(a.dt[r * a.dt_stride + c]), x = set1(in);
    const float *b = a.b + r * a.b_stride, *out_c = a.c + r * a.c_stride;
    Vec y = zero();
    each(n, [&](int64_t i, int64_t m) {
      Vec h = before.load(i, m);
      h = fma(exp(mul(dt, load_some(rates + i, m))), h, mul(mul(dt, load_some(b + i, m)), x));
      h = after.store(i, h, m);
      if (to) to.store(i, h, m);
      y = fma(load_some(out_c + i, m), h, y);
    });
    const float d = a.d ? a.d[c] * in : 0;
    a.out[r * a.out_stride + c] = sum(y) + d;
  }
}

// A channel's n_state values are the lanes. h = exp(dt a) h + (dt B) x, y = C . h + d x.
template <mr::StoredAs type>
[[gnu::flatten]] void scan_as(const mr::ScanCall& a) {
  int64_t c = a.first;
  const int64_t end = a.first + a.n;
  if (a.n_state <= kLanes && !a.rows.parent)
    for (; c + 2 <= end; c += 2) scan_chain<type, 2>(a, c);
  for (; c < end; c++) scan_channel<type>(a, c);
}
void scan(const mr::ScanCall& a) {
  a.type == mr::kF32 ? scan_as<mr::kF32>(a) : a.type == mr::kF16 ? scan_as<mr::kF16>(a) : scan_as<mr::kBf16>(a);
}

// One token of channels [i, i + 16 G) of a head: h = decay h + (dt x) B, y = C . h + d x. Channels are the lanes, so that no
// sum runs across them. States are [n_state, head_dim]; `to` may be null. m: valid channels of a vector.
template <mr::StoredAs type, int G>
inline void outer_step(const mr::OuterScanCall& a, int r, int64_t head, int64_t i, int64_t m, State<type> before, State<type> after,
                       State<type> to, float dt, Vec decay) {
  const int64_t group = head / a.heads_a_group * a.n_state, first = head * a.head_dim + i;
  const float *x = a.x + r * a.x_stride + first, *b = a.b + r * a.b_stride + group, *c = a.c + r * a.c_stride + group;
  float* out = a.out + r * a.out_stride + first;
  const Vec d = set1(a.d ? a.d[head] : 0);
  Vec in[G], y[G];
  for (int g = 0; g < G; g++) {
    const Vec v = load_some(x + g * kLanes, m);
    in[g] = mul(set1(dt), v);
    y[g] = mul(d, v);
  }
  for (int j = 0; j < a.n_state; j++) {
    const Vec bj = set1(b[j]), cj = set1(c[j]);
    for (int g = 0; g < G; g++) {
      const int64_t at = int64_t(j) * a.head_dim + i + g * kLanes;
      const Vec h = after.store(at, fma(decay, before.load(at, m), mul(in[g], bj)), m);
      if (to) to.store(at, h, m);
      y[g] = fma(cj, h, y[g]);
    }
  }
  for (int g = 0; g < G; g++) store_some(out + g * kLanes, y[g], m);
}

template <mr::StoredAs type>
[[gnu::flatten]] void outer_scan_as(const mr::OuterScanCall& a) {
  const int64_t size = int64_t(a.n_state) * a.head_dim;
  for (int64_t head = a.first; head < a.first + a.n; head++) {
    const State<type> source = state_first<type>(a.rows, state_at<type>(a.rows.source, head * size), size);
    for (int r = 0; r < a.rows.rows; r++) {
      const State<type> before = state_before<type>(a.rows, r, source, size), after = state_after<type>(a.rows, r, size);
      const State<type> to = state_at<type>(a.rows.store[r], head * size);
      float dt = a.dt[r * a.dt_stride + head];
      dt = dt < a.dt_min ? a.dt_min : dt > a.dt_max ? a.dt_max : dt;
      const Vec decay = exp(set1(dt * a.a[head]));
      int64_t i = 0;
      for (; i + 4 * kLanes <= a.head_dim; i += 4 * kLanes) outer_step<type, 4>(a, r, head, i, kLanes, before, after, to, dt, decay);
      for (; i < a.head_dim; i += kLanes) outer_step<type, 1>(a, r, head, i, a.head_dim - i, before, after, to, dt, decay);
    }
  }
}
void outer_scan(const mr::OuterScanCall& a) {
  a.type == mr::kF32 ? outer_scan_as<mr::kF32>(a) : a.type == mr::kF16 ? outer_scan_as<mr::kF16>(a) : outer_scan_as<mr::kBf16>(a);
}

[[gnu::flatten]] float max_of(const float* x, int64_t n) {
  Vec m0 = set1(-__builtin_inff()), m1 = m0;
  int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    m0 = max(load(x + i), m0);
    m1 = max(load(x + i + kLanes), m1);
  }
  float best = max_lane(max(m0, m1));
  for (; i < n; i++) best = x[i] > best ? x[i] : best;
  return best;
}

[[gnu::flatten]] float sum_exp(const float* x, int64_t n, float max, float factor) {
  const Vec top = set1(max), f = set1(factor);
  return row_sum(n, [=](Vec s, int64_t i, int64_t m) {
    Vec e = exp(mul(sub(load_some(x + i, m), top), f));
    return add(s, m >= kLanes ? e : first_lanes(e, int(m)));
  });
}

}  // namespace ops
}  // namespace
