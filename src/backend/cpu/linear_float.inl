// Products of f32 activations with float weights, and what all products share: stretches of K, epilogues, the panels' constants.
#pragma once

#include "backend/cpu/linear_kernels.h"
#include "backend/cpu/vec.h"

namespace {
namespace linear {

using mr::LinearCall;

constexpr int kPanel = 16, kBlock = 32, kPair = 2, kStretch = 512;

// K blocking of products of many rows: stretches of about kStretch inputs, of equal length and whole blocks.
constexpr int64_t kLongestStretch = kStretch / 2 * 3;
constexpr int64_t stretch_of(int64_t in, int64_t block = kBlock) {
  const int64_t n = in <= kLongestStretch ? 1 : (in + kStretch / 2 - 1) / kStretch;
  return ((in + n - 1) / n + block - 1) / block * block;
}

// Largest tiles that fit in registers; kQuantStretch 0: quantized products of many rows are not blocked over K.
#if defined(__AVX512F__)
constexpr int kFloatRows = 8, kFloatPanels = 2, kQuantRows = 8, kQuantStretch = kStretch;
#elif defined(__AVX2__)
constexpr int kFloatRows = 6, kFloatPanels = 1, kQuantRows = 4, kQuantStretch = kStretch;
#else
constexpr int kFloatRows = 4, kFloatPanels = 1, kQuantRows = 1, kQuantStretch = 0;
#endif

template <int N>
inline void finish_n(const LinearCall& c, int64_t row, int64_t column, Vec sum, int n) {
  auto get = [&](const float* p) { return N ? load_n(p, n) : load(p); };
  if (c.bias) sum = add(sum, get(c.bias + column));
  if (c.scale != 1) sum = mul(set1(c.scale), sum);
  if (c.residual) sum = add(get(c.residual + row * c.residual_stride + column), sum);
  float* y = c.y + row * c.y_stride + column;
  if (N)
    store_n(y, sum, n);
  else
    store(y, sum);
}

inline void finish(const LinearCall& c, int64_t row, int64_t panel, Vec sum) {
  int64_t column = panel * kPanel, left = c.out - column;
  if (left >= kPanel)
    finish_n<0>(c, row, column, sum, kPanel);
  else
    finish_n<1>(c, row, column, sum, int(left));
}

// Prefetches the output lines into L1 while a tile is computed: rows are far apart, and each would be a miss.
template <int Rows, int Panels>
inline void fetch_outputs(const LinearCall& c, int64_t row, int64_t panel) {
  if constexpr (Rows > 1)
    for (int r = 0; r < Rows; r++)
      for (int p = 0; p < Panels; p++) __builtin_prefetch(c.y + (row + r) * c.y_stride + (panel + p) * kPanel, 1, 3);
}

// One row: software prefetch distance in bytes, for processors whose hardware prefetcher does not run far enough ahead.
#if defined(__AMX_BF16__)
constexpr int64_t kAhead = 4096;
#elif defined(__AVX512VNNI__)
constexpr int64_t kAhead = 8192;  // Zen 5, Q4_1: decoding 1.18 times as fast as without; 1.07 times at half, 1.13 at four times this
#else
constexpr int64_t kAhead = 0;
#endif
template <int64_t Bytes>
inline void fetch_ahead(const void* weights) {
  if constexpr (kAhead > 0)
    for (int64_t i = 0; i < Bytes; i += 64) __builtin_prefetch((const char*)weights + kAhead + i, 0, 2);
}

// Float weights.

struct F32 {
  using Stored = float;
  static Vec get(const float* p) { return load(p); }
};
struct F16 {
  using Stored = uint16_t;
  static Vec get(const uint16_t* p) { return load_f16(p); }
};
struct Bf16 {
  using Stored = uint16_t;
  static Vec get(const uint16_t* p) { return load_bf16(p); }
};

template <class W>
constexpr int kInputs = 4 / sizeof(typename W::Stored);  // in a vector of 64 bytes
template <class W>
inline const typename W::Stored* panel_of(const LinearCall& c, int64_t panel) {
  const int64_t vectors = (c.in + kInputs<W> - 1) / kInputs<W>;
  return (const typename W::Stored*)c.packed + (panel / kPair * kPair * vectors + panel % kPair) * (kInputs<W> * kPanel);
}

// Inputs [begin, end) of a product of many rows, one K block: activations, weights and partial sums stay in cache. Partial sums are
// carried from stretch to stretch.
struct Stretch {
  int64_t begin, end;
  float* sums = nullptr;  // [row][16], of the tile's first row and panel
  int64_t next_panel = 0;
};
inline Vec sum_before(const Stretch& s, int r, int p = 0) { return s.begin ? load(s.sums + p * s.next_panel + r * kPanel) : zero(); }
inline void keep_sum(const LinearCall& c, const Stretch& s, int64_t row, int64_t panel, int r, int p, Vec sum) {
  if (s.end == c.in)
    finish(c, row + r, panel + p, sum);
  else
    store(s.sums + p * s.next_panel + r * kPanel, sum);
}

// Vectors of the two panels of a pair are interleaved; a panel's next vector is Step further.
template <class W, int Rows, int Panels, int Step>
void float_tile(const LinearCall& c, int64_t row, int64_t panel, const typename W::Stored* w, const Stretch& s) {
  constexpr int kVector = kInputs<W> * kPanel;
  Vec acc[Rows][Panels];
  for (int r = 0; r < Rows; r++)
    for (int p = 0; p < Panels; p++) acc[r][p] = sum_before(s, r, p);
  if (s.end == c.in) fetch_outputs<Rows, Panels>(c, row, panel);
  const float* x = c.x + row * c.x_stride;
  const int64_t end = s.end, stride = c.x_stride;
  auto input = [&](int64_t k, int i) {
    Vec wk[Panels];
    for (int p = 0; p < Panels; p++) wk[p] = W::get(w + p * kVector + i * kPanel);
    for (int r = 0; r < Rows; r++) {
      Vec xk = set1(x[r * stride + k + i]);
      for (int p = 0; p < Panels; p++) acc[r][p] = in_register(fma(xk, wk[p], acc[r][p]));
    }
  };
  int64_t k = s.begin;
  for (; k + kInputs<W> <= end; k += kInputs<W>, w += Step * kVector) {
    if constexpr (Rows == 1) fetch_ahead<64 * Panels>(w);
    for (int i = 0; i < kInputs<W>; i++) input(k, i);
  }
  if (k < end) input(k, 0);
  for (int r = 0; r < Rows; r++)
    for (int p = 0; p < Panels; p++) keep_sum(c, s, row, panel, r, p, acc[r][p]);
}

// Tile height: the fewest tiles of at most `most` rows, as equal as possible: 9 rows are 5 + 4, not 8 + 1.
inline int64_t tile_rows(int64_t rows, int most) {
  int64_t tiles = (rows + most - 1) / most;
  return (rows + tiles - 1) / tiles;
}

// Rows [row, row_end) of one group of panels, in tiles of at most Rows rows.
template <class W, int Rows, int Panels, int Step>
void float_rows(const LinearCall& c, int64_t row, int64_t row_end, int64_t panel, const typename W::Stored* w, Stretch s) {
  if (tile_rows(row_end - row, Rows) == Rows)
    for (; row + Rows <= row_end; row += Rows, s.sums += Rows * kPanel) float_tile<W, Rows, Panels, Step>(c, row, panel, w, s);
  if constexpr (Rows > 1)
    if (row < row_end) float_rows<W, Rows - 1, Panels, Step>(c, row, row_end, panel, w, s);
}

// The same, from an f32 copy of the panels if there are many rows: weights are widened once instead of once per tile.
template <class W, int Rows, int Panels>
void float_panels(const LinearCall& c, int64_t row, int64_t row_end, int64_t panel, const Stretch& s, float* copy) {
  const auto* w = panel_of<W>(c, panel) + s.begin * kPair * kPanel;
  if (sizeof(*w) == sizeof(float) || row_end - row <= 2 * kFloatRows)
    return float_rows<W, Rows, Panels, kPair>(c, row, row_end, panel, w, s);
  for (int64_t k = 0; k < s.end - s.begin; k++)
    for (int p = 0; p < Panels; p++)
      store(copy + (k * Panels + p) * kPanel, W::get(w + ((k / kInputs<W> * kPair + p) * kInputs<W> + k % kInputs<W>)*kPanel));
  float_rows<F32, Rows, Panels, Panels>(c, row, row_end, panel, copy, s);
}

#if defined(__AVX512F__)
// A vector holds two inputs: a permutation moves 16 of its words into the upper halves of lanes, which widens them to f32.
template <int Panels>
void bf16_row_tile(const LinearCall& c, int64_t row, int64_t panel, const uint16_t* w) {
  const __m512i first = _mm512_slli_epi32(_mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0), 16);
  const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(16 << 16));
  auto widen = [](__m512i order, __m512i two) { return Vec{_mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(0xaaaaaaaa, order, two))}; };
  Vec acc[Panels];
  for (Vec& a : acc) a = zero();
  const float* x = c.x + row * c.x_stride;
  int64_t k = 0;
  for (; k + 2 <= c.in; k += 2, w += kPair * 2 * kPanel) {
    fetch_ahead<64 * Panels>(w);
    Vec x0 = set1(x[k]), x1 = set1(x[k + 1]);
    for (int p = 0; p < Panels; p++) {
      __m512i two = _mm512_loadu_si512(w + p * 2 * kPanel);
      acc[p] = fma(x1, widen(second, two), fma(x0, widen(first, two), acc[p]));
    }
  }
  if (k < c.in)
    for (int p = 0; p < Panels; p++) acc[p] = fma(set1(x[k]), load_bf16(w + p * 2 * kPanel), acc[p]);
  for (int p = 0; p < Panels; p++) finish(c, row, panel + p, acc[p]);
}
#endif

template <class W, int Panels>
void row_tile(const LinearCall& c, int64_t row, int64_t panel) {
  const auto* w = panel_of<W>(c, panel);
#if defined(__AVX512F__)
  if constexpr (__is_same(W, Bf16)) return bf16_row_tile<Panels>(c, row, panel, w);
#endif
  float_tile<W, 1, Panels, kPair>(c, row, panel, w, {0, c.in});
}

// Calls both(panel) for every whole pair in [panel, panel_end), one(panel) for a panel whose pair is cut by the range.
template <class Both, class One>
inline void pairs(int64_t panel, int64_t panel_end, Both both, One one) {
  while (panel < panel_end) {
    if (panel % kPair == 0 && panel + kPair <= panel_end) {
      both(panel);
      panel += kPair;
    } else {
      one(panel);
      panel++;
    }
  }
}

template <class W>
void run_float(const LinearCall& c, int64_t row, int64_t row_end, int64_t panel, int64_t panel_end, float* scratch) {
  if (row_end - row == 1)
    return pairs(
        panel, panel_end, [&](int64_t p) { row_tile<W, kPair>(c, row, p); }, [&](int64_t p) { row_tile<W, 1>(c, row, p); });
  const int64_t rows = row_end - row, stretch = rows > 2 * kFloatRows ? stretch_of(c.in) : c.in;
  float *copy = scratch, *sums = scratch + kLongestStretch * kPair * kPanel;
  for (int64_t k = 0; k < c.in; k += stretch) {
    auto at = [&](int64_t p) {
      return Stretch{k, k + stretch < c.in ? k + stretch : c.in, sums + (p - panel) * rows * kPanel, rows * kPanel};
    };
    auto one = [&](int64_t p) { float_panels<W, kFloatRows, 1>(c, row, row_end, p, at(p), copy); };
    auto both = [&](int64_t p) {
      if constexpr (kFloatPanels == kPair) {
        float_panels<W, kFloatRows, kPair>(c, row, row_end, p, at(p), copy);
      } else {
        one(p);
        one(p + 1);
      }
    };
    pairs(panel, panel_end, both, one);
  }
}

// Stored rows, decoded by stretch and panel; then as f32 weights.
constexpr int64_t kStoredBlock = 256;  // every codec's block divides it
inline void run_stored(const LinearCall& c, int64_t row, int64_t row_end, int64_t panel, int64_t panel_end, float* scratch) {
  float *copy = scratch, *decoded = copy + kLongestStretch * kPanel, *sums = scratch + kLongestStretch * kPair * kPanel;
  const int64_t stretch = stretch_of(c.in, kStoredBlock);
  for (int64_t p = panel; p < panel_end; p++)
    for (int64_t k = 0; k < c.in; k += stretch) {
      const int64_t end = k + stretch < c.in ? k + stretch : c.in, n = end - k, left = c.out - p * kPanel;
      for (int64_t r = 0; r < kPanel; r++) {
        if (r < left) c.decode(*c.stored, p * kPanel + r, k, n, decoded);
        for (int64_t i = 0; i < n; i++) copy[i * kPanel + r] = r < left ? decoded[i] : 0;
      }
      float_rows<F32, kFloatRows, 1, 1>(c, row, row_end, p, copy, {k, end, sums});
    }
}

}  // namespace linear
}  // namespace
