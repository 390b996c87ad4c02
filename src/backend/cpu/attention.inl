// Attention over one span of keys (after FlashAttention, Dao et al. 2022, and its split over keys, Dao 2023). Both products
// are register tiles of M queries by N vectors: scores have 16 keys in the lanes, values 16 columns of V. Each score is one
// chain over the head's dimensions, each value one chain over the keys, so the bits do not depend on M or N. A masked key
// has weight 0 and changes nothing, so skipping it gives the same bits.
// Codes of 8 and 4 bits are numbers like any other; a key's scale multiplies its score, a value's scale its weight.
// Cost of a span: n_queries * keys * (k_dim + v_dim) multiply-adds, keys * (k_dim + v_dim) elements read.
#pragma once

#include "backend/cpu/ops.inl"

namespace {
namespace attention {

using mr::SpanCall;
using mr::StoredAs;

#if defined(__AVX512F__)
constexpr int kMaxQueries = 12;
constexpr int vectors(int m) { return m <= 4 ? 4 : 2; }
#elif defined(__AVX2__)
constexpr int kMaxQueries = 6;
constexpr int vectors(int m) { return m == 1 ? 4 : m == 2 ? 2 : 1; }
#else
constexpr int kMaxQueries = 4;
constexpr int vectors(int) { return 1; }
#endif

constexpr float kNothing = -1e30f;  // the maximum of no scores: finite, so that differences are never NaN

constexpr int bits_of(StoredAs type) { return type == mr::kF32 ? 32 : type <= mr::kBf16 ? 16 : type == mr::kI4 ? 4 : 8; }

template <StoredAs type>
inline Vec load_as(const void* p, int64_t i) {
  const uint8_t* bytes = static_cast<const uint8_t*>(p) + i;
  if constexpr (type == mr::kF32) return load(static_cast<const float*>(p) + i);
  if constexpr (type == mr::kF16) return load_f16(static_cast<const uint16_t*>(p) + i);
  if constexpr (type == mr::kBf16) return load_bf16(static_cast<const uint16_t*>(p) + i);
  if constexpr (type == mr::kE4m3) return load_e4m3(bytes);
  if constexpr (type == mr::kE5m2) return load_e5m2(bytes);
  if constexpr (type == mr::kI8) return load_i8(bytes);
}
// Dimension d of the 16 keys of a tile.
template <StoredAs type>
inline Vec load_keys(const void* tile, int64_t d) {
  if constexpr (type == mr::kI4)
    return load_i4(static_cast<const uint8_t*>(tile) + d / 2 * kLanes, int(d % 2 * 4));
  else
    return load_as<type>(tile, d * kLanes);
}
// Values i to i + 15 of a row, or of rows that follow each other.
template <StoredAs type>
inline Vec load_values(const void* row, int64_t i) {
  if constexpr (type == mr::kI4)
    return load_i4_pairs(static_cast<const uint8_t*>(row) + i / 2);
  else
    return load_as<type>(row, i);
}

// Few queries are bound by memory, and pages are scattered: the loop over keys prefetches their values, and the next keys unless the
// previous call did; the loop over values prefetches the keys of this worker's next span.
template <int M>
constexpr bool kFetch = M < kMaxQueries;
constexpr int kLine = 64;  // bytes of a cache line

template <StoredAs type, int M, int N>
inline void scores(const SpanCall& a, int tile) {
  constexpr int kBytes = SpanCall::kTile * bits_of(type) / 8;  // of one dimension
  const int tiles = (a.end - a.first + SpanCall::kTile - 1) / SpanCall::kTile;
  Vec s[M][N];
  for (int m = 0; m < M; m++)
    for (int n = 0; n < N; n++) s[m][n] = zero();
  const char *k[N], *next[N], *v[N];
  for (int n = 0; n < N; n++) {
    k[n] = static_cast<const char*>(a.k_tile[tile + n]);
    v[n] = static_cast<const char*>(a.v_tile[tile + n]);
    next[n] = static_cast<const char*>(a.k_tile[tile + (tile + N + n < tiles ? N : 0) + n]);
  }
  const float* q = a.q;
  for (int d = 0; d < a.k_dim; d++) {
    for (int n = 0; n < N; n++) {
      const Vec kv = load_keys<type>(k[n], d);
      for (int m = 0; m < M; m++) s[m][n] = fma(set1(q[m * int64_t(a.k_dim) + d]), kv, s[m][n]);
      if constexpr (kFetch<M>)
        if (d * kBytes % kLine == 0) {
          if (!a.k_fetched) __builtin_prefetch(next[n] + d * kBytes, 0, 3);
          if (d < a.v_dim) __builtin_prefetch(v[n] + d * kBytes, 0, 2);
        }
    }
  }
  for (int n = 0; n < N; n++) {
    const int key = (tile + n) * SpanCall::kTile;
    const Vec scale = a.k_scale ? load(a.k_scale + key) : zero();
    for (int m = 0; m < M; m++) store(a.scores + m * SpanCall::kSpan + key, a.k_scale ? mul(s[m][n], scale) : s[m][n]);
  }
}

// acc columns [column, column + 16 N) = weights . V
template <StoredAs type, int M, int N>
inline void values(const SpanCall& a, int column) {
  const int fetch_a_key = (a.k_dim * bits_of(type) / 8 + kLine - 1) / kLine;  // lines per key: 16 keys prefetch a tile
  Vec s[M][N];
  for (int m = 0; m < M; m++)
    for (int n = 0; n < N; n++) s[m][n] = zero();
  for (int key = a.first, tile = 0; key < a.end; key += SpanCall::kTile, tile++) {
    const int keys = a.end - key < SpanCall::kTile ? a.end - key : SpanCall::kTile;
    const void* v = a.v_tile[tile];
    const float* p = a.scores + tile * SpanCall::kTile;
    const char* next = kFetch<M> && column == 0 && tile < a.n_next ? static_cast<const char*>(a.next_k_tile[tile]) : nullptr;
    for (int k = 0; k < keys; k++) {
      for (int n = 0; n < N; n++) {
        const Vec kv = load_values<type>(v, k * a.v_stride + column + n * kLanes);
        for (int m = 0; m < M; m++) s[m][n] = fma(set1(p[m * SpanCall::kSpan + k]), kv, s[m][n]);
      }
      if (kFetch<M> && next)
        for (int i = 0; i < fetch_a_key; i++, next += kLine) __builtin_prefetch(next, 0, 2);
    }
  }
  for (int m = 0; m < M; m++)
    for (int n = 0; n < N; n++) store(a.acc + m * a.v_stride + column + n * kLanes, s[m][n]);
}

// Scores of keys [key, key + 16), -inf where masked.
inline Vec masked(Vec s, const mr::Sight& sight, int key) {
  static const float kIndex[kLanes] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const Vec index = add(set1(float(key)), load(kIndex)), never = set1(-__builtin_inff());
  s = select_lt(index, set1(float(sight.lo)), never, s);
  s = select_lt(index, set1(float(sight.hi)), s, never);
  if (sight.bits == ~uint64_t(0) || key + kLanes <= sight.corner) return s;
  float lanes[kLanes];
  store(lanes, s);
  for (int i = 0; i < kLanes; i++) {
    int own = key + i - sight.corner;
    if (own >= 0 && !(own < 64 && (sight.bits >> own & 1))) lanes[i] = -__builtin_inff();
  }
  return load(lanes);
}

// Turns the scores of one query into weights exp(score - max), times the scale of the value that each is of.
[[gnu::flatten]] void weigh(const SpanCall& a, int m) {
  float* row = a.scores + m * SpanCall::kSpan;
  const mr::Sight& sight = a.sight[m];
  const bool bits = sight.bits != ~uint64_t(0);
  Vec top = set1(kNothing);
  for (int key = a.first; key < a.end; key += kLanes) {
    float* p = row + (key - a.first);
    Vec s = load(p);
    if (a.softcap != 0) s = ops::capped(s, set1(a.softcap));
    if (key < sight.lo || key + kLanes > sight.hi || bits) s = masked(s, sight, key);
    store(p, s);
    top = max(s, top);
  }
  const float best = max_lane(top);
  const Vec max = set1(best);
  Vec total = zero();
  for (int key = a.first; key < a.end; key += kLanes) {
    float* p = row + (key - a.first);
    Vec e = exp(sub(load(p), max));
    store(p, a.v_scale ? mul(e, load(a.v_scale + (key - a.first))) : e);
    total = add(total, e);
  }
  a.max[m] = best;
  a.sum[m] = sum(total);
}

template <StoredAs type, int M>
[[gnu::flatten]] void scores_of(const SpanCall& a) {
  constexpr int N = vectors(M);
  const int tiles = (a.end - a.first + SpanCall::kTile - 1) / SpanCall::kTile;
  int tile = 0;
  for (; tile + N <= tiles; tile += N) scores<type, M, N>(a, tile);
  for (; tile < tiles; tile++) scores<type, M, 1>(a, tile);
}

template <StoredAs type, int M>
[[gnu::flatten]] void values_of(const SpanCall& a) {
  constexpr int N = vectors(M);
  int column = 0;
  for (; column + N * kLanes <= a.v_stride; column += N * kLanes) values<type, M, N>(a, column);
  for (; column < a.v_stride; column += kLanes) values<type, M, 1>(a, column);
}

template <StoredAs type>
[[gnu::flatten]] void widen_keys_from(float* to, const void* tile, int k_dim) {
  for (int d = 0; d < k_dim; d++) store(to + d * kLanes, load_keys<type>(tile, d));
}

template <StoredAs type>
[[gnu::flatten]] void widen_values_from(float* to, const void* tile, int keys, int v_dim) {
  constexpr int kBytes = kLanes * bits_of(type) / 8;  // of 16 values
  const int64_t padded = (v_dim + kLanes - 1) / kLanes * kLanes, row = (int64_t(v_dim) * bits_of(type) + 7) / 8;
  for (int k = 0; k < keys; k++, to += padded) {
    const uint8_t* from = static_cast<const uint8_t*>(tile) + k * row;
    int i = 0;
    for (; i + kLanes <= v_dim; i += kLanes, from += kBytes) store(to + i, load_values<type>(from, 0));
    if (i == v_dim) continue;
    uint8_t rest[kBytes] = {};
    for (int j = 0; j < ((v_dim - i) * bits_of(type) + 7) / 8; j++) rest[j] = from[j];
    store(to + i, ops::first_lanes(load_values<type>(rest, 0), v_dim - i));
  }
}

// Calls f with the stored type as a compile-time constant; few: it may be one of 8 or 4 bits.
template <StoredAs type>
struct As {};
template <bool few, class F>
inline void with_type(StoredAs type, F f) {
  switch (type) {
    case mr::kF32:
      return f(As<mr::kF32>{});
    case mr::kF16:
      return f(As<mr::kF16>{});
    case mr::kBf16:
      return f(As<mr::kBf16>{});
    default:
      break;
  }
  if constexpr (few) {
    if (type == mr::kE4m3) f(As<mr::kE4m3>{});
    if (type == mr::kE5m2) f(As<mr::kE5m2>{});
    if (type == mr::kI8) f(As<mr::kI8>{});
    if (type == mr::kI4) f(As<mr::kI4>{});
  }
}

void widen_keys(float* to, const void* tile, int k_dim, StoredAs type) {
  with_type<true>(type, [=]<StoredAs t>(As<t>) { widen_keys_from<t>(to, tile, k_dim); });
}
void widen_values(float* to, const void* tile, int keys, int v_dim, StoredAs type) {
  with_type<true>(type, [=]<StoredAs t>(As<t>) { widen_values_from<t>(to, tile, keys, v_dim); });
}

template <int M>
void attend_by(const SpanCall& a) {
  if constexpr (M > 0) {
    if (a.n_queries != M) return attend_by<M - 1>(a);
    constexpr bool few = M <= SpanCall::kFewQueries;
    with_type<few>(a.k_type, [&]<StoredAs t>(As<t>) { scores_of<t, M>(a); });
    for (int m = 0; m < M; m++) weigh(a, m);
    with_type<few>(a.v_type, [&]<StoredAs t>(As<t>) { values_of<t, M>(a); });
  }
}
void attend_span(const SpanCall& a) { attend_by<kMaxQueries>(a); }

inline Vec exp_of(float x) { return exp(set1(x)); }
inline float lane(Vec v) {
  float lanes[kLanes];
  store(lanes, v);
  return lanes[0];
}

[[gnu::flatten]] void merge(float* max, float* sum, float* acc, float later_max, float later_sum, const float* later, int64_t n) {
  const float top = later_max > *max ? later_max : *max;
  const Vec c0 = exp_of(*max - top), c1 = exp_of(later_max - top);
  *max = top;
  *sum = lane(fma(set1(*sum), c0, mul(set1(later_sum), c1)));
  ops::each(n, [=](int64_t i, int64_t m) {
    Vec x = fma(ops::load_some(acc + i, m), c0, mul(ops::load_some(later + i, m), c1));
    ops::store_some(acc + i, x, m);
  });
}

[[gnu::flatten]] void finish(float* out, float max, float sum, const float* acc, int64_t n, bool has_sink, float sink) {
  Vec total = set1(sum), scale = set1(1);
  if (has_sink) {
    const float top = sink > max ? sink : max;
    scale = exp_of(max - top);
    total = fma(total, scale, exp_of(sink - top));
  }
  ops::each(n, [=](int64_t i, int64_t m) { ops::store_some(out + i, div(mul(ops::load_some(acc + i, m), scale), total), m); });
}

}  // namespace attention

namespace ops {

constexpr mr::OpKernels kKernels = {attention::kMaxQueries,
                                    norm,
                                    add_scaled,
                                    combine,
                                    mean_square,
                                    gate,
                                    activate,
                                    softplus_row,
                                    softcap,
                                    exp_row,
                                    tanh_row,
                                    rope,
                                    store_rounded,
                                    attention::widen_keys,
                                    attention::widen_values,
                                    attention::attend_span,
                                    attention::merge,
                                    attention::finish,
                                    conv,
                                    scan,
                                    outer_scan,
                                    max_of,
                                    sum_exp};

}  // namespace ops
}  // namespace
