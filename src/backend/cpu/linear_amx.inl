// Matrix products on AMX's bf16 tiles. Include after linear.inl; T provides the tiles (tests emulate them in software).
//
// Quantized weights and their rounded activations are small integers: as bf16, an activation in two pieces (the upper
// byte times 256, and the lower byte), the tile product's f32 sums over a block of 32 inputs are exact. So the bits equal those of
// every other instruction set, and products of few rows may use the vector kernels.
// bf16 weights: activations are two bf16 pieces, x = high + low + at most 2^-17 |x|. Every output is one chain over blocks of 32
// inputs, high before low; a single row does the same steps on vectors. These bits differ from other instruction sets.
#pragma once

#include "backend/cpu/amx_tiles.inl"

namespace {
namespace amx {

using linear::finish;
using mr::LinearCall;

constexpr int64_t kFewRows = 12;       // quantized products of fewer rows are faster on vectors
constexpr int64_t kScratchPanels = 4;  // most widened panels of quantized weights in a worker's scratch

// Quantized weights.

// Adds blocks [block, block_end) of one panel to the sums of up to 16 rows; Full: 16, in registers.
template <class T, class W, bool Full>
void quant_tile(const W& panel, const std::byte* x, const Scaling* scaling, const uint8_t* w, const uint8_t* tiles, int n_rows,
                int64_t block, int64_t block_end, float* sums) {
  // A sum of 32 products of 4 by 16 bits stays below 2^24, so one accumulator takes both pieces; more bits need one for each.
  static_assert(W::kGroups == 1);
  constexpr bool kOneSum = W::kOffset <= 16 && W::kLargest - W::kOffset <= 16;
  constexpr int kSums = kOneSum ? 1 : 2;
  // Loading what a tile has just stored stalls: a block's sums are read kLag blocks later, while the tiles work on.
  constexpr int kLag = 2, kBuffers = kLag + 1;
  alignas(64) float dots[kBuffers][kSums][kTile * kPanel];
  const int n = Full ? kTile : n_rows;
  Vec acc[kTile];
#pragma GCC unroll 16
  for (int r = 0; r < n; r++) acc[r] = load(sums + r * kPanel);
  int write = 0, read = 0;
  for (int64_t b = block; b < block_end + kLag; b++) {
    if (b < block_end) {
      T::template load<6>(tiles + b * kTileBytes, 64);
      T::template load<4>(x + b * kPairBytes, kPieceBytes);
      T::template zero<0>();
      T::template dot<0, 4, 6>();
      T::template load<5>(x + b * kPairBytes + kTileBytes, kPieceBytes);
      if constexpr (kOneSum) {
        T::template dot<0, 5, 6>();
      } else {
        T::template zero<2>();
        T::template dot<2, 5, 6>();
        T::template store<2>(dots[write][kSums - 1], 64);
      }
      T::template store<0>(dots[write][0], 64);
      write = write + 1 == kBuffers ? 0 : write + 1;
    }
    if (b < block + kLag) continue;
    const int64_t done = b - kLag;
    const uint8_t* stored = w + done / W::kBlocks * W::kBytes;
    const int within = int(done % W::kBlocks);
    const Vec scale = panel.scale(stored, within, 0);
    [[maybe_unused]] Vec minimum;
    if constexpr (W::kMinimum) minimum = panel.minimum(stored, within, 0);
    const float(*dot)[kTile * kPanel] = dots[read];
    read = read + 1 == kBuffers ? 0 : read + 1;
#pragma GCC unroll 16
    for (int r = 0; r < n; r++) {
      Vec sum = load(dot[0] + r * kPanel);
      if constexpr (!kOneSum) sum = add(sum, load(dot[kSums - 1] + r * kPanel));
      acc[r] = fma(sum, mul(scale, set1(scaling[done].scale[r])), acc[r]);
      if constexpr (W::kMinimum) acc[r] = fma(minimum, set1(scaling[done].sum[r]), acc[r]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < n; r++) store(sums + r * kPanel, acc[r]);
}

// One row tile times n_panels widened panels, in runs of kNear blocks whose activations stay in L1.
template <class T, class W>
void quant_row_tile(const LinearCall& c, int64_t row, int n_rows, int64_t panel, int n_panels, const uint8_t* tiles) {
  constexpr int64_t kNear = 12;
  const int64_t blocks = c.in / kBlock;
  const std::byte* x = c.rounded + row / kTile * scaled_tile_bytes(c.in);
  const auto* scaling = (const Scaling*)(x + blocks * kPairBytes);
  const int64_t panel_bytes = blocks / W::kBlocks * W::kBytes;
  const auto* w = (const uint8_t*)c.packed + panel * panel_bytes;
  alignas(64) float sums[kScratchPanels][kTile * kPanel] = {};
  for (int64_t b = 0; b < blocks; b += kNear)
    for (int p = 0; p < n_panels; p++) {
      auto tile = n_rows == kTile ? quant_tile<T, W, true> : quant_tile<T, W, false>;
      tile(W(c, panel + p), x, scaling, w + p * panel_bytes, tiles + p * blocks * kTileBytes, n_rows, b, least(b + kNear, blocks), sums[p]);
    }
  for (int p = 0; p < n_panels; p++)
    for (int r = 0; r < n_rows; r++) finish(c, row + r, panel + p, load(sums[p] + r * kPanel));
}

template <class T, class W>
void run_quant(const LinearCall& c, int64_t row, int64_t row_end, int64_t panel, int64_t panel_end, float* scratch) {
  constexpr int64_t kCached = 256 << 10;  // bytes of widened panels that stay in L2
  const int64_t blocks = c.in / kBlock;
  int64_t most = kCached / (blocks * kTileBytes);
  most = least(most < 1 ? 1 : most, kScratchPanels);
  auto* tiles = (uint8_t*)scratch;
  configure<T>(kTile, kTile);
  int64_t configured = kTile;
  for (int64_t p = panel; p < panel_end; p += most) {
    const int64_t n = least(most, panel_end - p);
    for (int64_t i = 0; i < n; i++)
      Widen<W>::panel((const uint8_t*)c.packed + (p + i) * (blocks / W::kBlocks * W::kBytes), blocks, tiles + i * blocks * kTileBytes);
    for (int64_t r = row; r < row_end; r += kTile) {
      const int64_t rows = least(kTile, row_end - r);
      if (rows != configured) configure<T>(rows, rows);
      configured = rows;
      quant_row_tile<T, W>(c, r, int(rows), p, int(n), tiles);
    }
  }
  T::release();
}

// bf16 weights.

// Blocks [begin, end) of a product of many rows, and the partial sums carried from stretch to stretch.
struct Blocks {
  int64_t begin, end;
  bool last;
  float* sums;         // [16][16] for every row tile of the piece's first panel
  int64_t next_panel;  // floats
  float* at(int64_t tile, int64_t panel) const { return sums + panel * next_panel + tile * kTile * kPanel; }
};
// Calls f(Blocks) for all stretches of a piece.
template <class F>
void stretches(int64_t in, int64_t rows, float* sums, F f) {
  const int64_t blocks = blocks_of(in), stretch = linear::stretch_of(in) / kBlock;
  for (int64_t b = 0; b < blocks; b += stretch)
    f(Blocks{b, least(b + stretch, blocks), b + stretch >= blocks, sums, (rows + kTile - 1) / kTile * kTile * kPanel});
}

template <class T, int C>
void finish_tile(const LinearCall& c, int64_t row, int64_t n_rows, int64_t panel) {
  alignas(64) float sums[kTile * kPanel];
  T::template store<C>(sums, 64);
  for (int r = 0; r < n_rows; r++) finish(c, row + r, panel, load(sums + r * kPanel));
}

// Up to 16 rows times up to 4 panels, widened block by block as they are read.
template <class T, int Panels>
void few_rows(const LinearCall& c, int64_t row, int64_t n_rows, int64_t panel) {
  alignas(64) uint8_t tile[2][kTileBytes];
  const std::byte* x = c.rounded + split_bytes(c.in, row);
  const uint16_t* w[Panels];
  for (int p = 0; p < Panels; p++) w[p] = linear::panel_of<linear::Bf16>(c, panel + p);
  T::template zero<0>(), T::template zero<1>(), T::template zero<2>(), T::template zero<3>();
  auto panel_block = [&]<int P>(int64_t b, std::integral_constant<int, P>) {
    if constexpr (P < Panels) {
      widen_bf16(w[P], c.in, b, tile[P & 1]);
      T::template load<6 + (P & 1)>(tile[P & 1], 64);
      T::template dot<P, 4, 6 + (P & 1)>();
      T::template dot<P, 5, 6 + (P & 1)>();
    }
  };
  for (int64_t b = 0; b < blocks_of(c.in); b++, x += kPairBytes) {
    T::template load<4>(x, kPieceBytes);
    T::template load<5>(x + kTileBytes, kPieceBytes);
    panel_block(b, std::integral_constant<int, 0>{});
    panel_block(b, std::integral_constant<int, 1>{});
    panel_block(b, std::integral_constant<int, 2>{});
    panel_block(b, std::integral_constant<int, 3>{});
  }
  finish_tile<T, 0>(c, row, n_rows, panel);
  if constexpr (Panels > 1) finish_tile<T, 1>(c, row, n_rows, panel + 1);
  if constexpr (Panels > 2) finish_tile<T, 2>(c, row, n_rows, panel + 2);
  if constexpr (Panels > 3) finish_tile<T, 3>(c, row, n_rows, panel + 3);
}

// Prefetches `lines` cache lines into L2, spread evenly over `steps` blocks.
struct Fetch {
  const std::byte* at;
  int64_t lines, steps, done = 0;
  void step() {
    for (int64_t i = done * lines / steps, end = ++done * lines / steps; i < end; i++) __builtin_prefetch(at + 64 * i, 0, 2);
  }
};

// 16 rows and up to 16 more, times a stretch of one or two widened panels. sums: of the first row tile and panel.
template <class T, int Panels>
void two_row_tiles(const LinearCall& c, int64_t row, int64_t n_second, int64_t panel, const uint8_t* tiles, const Blocks& s, float* sums,
                   Fetch& weights) {
  const std::byte *x = c.rounded + split_bytes(c.in, row) + s.begin * kPairBytes, *y = x + split_tile_bytes(c.in);
  auto every = [&](auto f) {
    f(std::integral_constant<int, 0>{}, row, int64_t(kTile), panel, sums);
    f(std::integral_constant<int, 2>{}, row + kTile, n_second, panel, sums + kTile * kPanel);
    if constexpr (Panels > 1) {
      f(std::integral_constant<int, 1>{}, row, int64_t(kTile), panel + 1, sums + s.next_panel);
      f(std::integral_constant<int, 3>{}, row + kTile, n_second, panel + 1, sums + s.next_panel + kTile * kPanel);
    }
  };
  every([&]<int C>(std::integral_constant<int, C>, int64_t, int64_t, int64_t, float* sum) {
    if (s.begin)
      T::template load<C>(sum, 64);
    else
      T::template zero<C>();
  });
  auto piece = [&](int64_t at) {
    T::template load<4>(x + at, kPieceBytes);
    T::template load<5>(y + at, kPieceBytes);
    T::template dot<0, 4, 6>();
    if constexpr (Panels > 1) T::template dot<1, 4, 7>();
    T::template dot<2, 5, 6>();
    if constexpr (Panels > 1) T::template dot<3, 5, 7>();
  };
  for (int64_t b = 0; b < s.end - s.begin; b++) {
    T::template load<6>(tiles + b * kTileBytes, 64);
    if constexpr (Panels > 1) T::template load<7>(tiles + (kStretch + b) * kTileBytes, 64);
    weights.step();
    piece(b * kPairBytes);
    piece(b * kPairBytes + kTileBytes);
  }
  every([&]<int C>(std::integral_constant<int, C>, int64_t r, int64_t n, int64_t p, float* sum) {
    if (s.last)
      finish_tile<T, C>(c, r, n, p);
    else
      T::template store<C>(sum, 64);
  });
}

template <class T, int Panels>
void few_rows_panels(const LinearCall& c, int64_t row, int64_t n_rows, int64_t panel, int64_t panel_end) {
  for (; panel + Panels <= panel_end; panel += Panels) few_rows<T, Panels>(c, row, n_rows, panel);
  if constexpr (Panels > 1) few_rows_panels<T, Panels - 1>(c, row, n_rows, panel, panel_end);
}

template <class T>
void run_bf16(const LinearCall& c, int64_t row, int64_t row_end, int64_t panel, int64_t panel_end, float* scratch) {
  const int64_t rows = row_end - row;
  const int64_t pairs_end = row + rows / (2 * kTile) * (2 * kTile), second = row_end - pairs_end - kTile;
  // The rest after pairs of row tiles: nothing, a last pair whose second tile is short, or a single tile.
  const int64_t alone = second > 0 ? row_end : pairs_end;
  auto* tiles = (uint8_t*)scratch;
  if (alone > row)
    stretches(c.in, rows, scratch + kStretchFloats, [&](const Blocks& s) {
      for (int64_t p = panel; p < panel_end; p += 2) {
        const int64_t n = least(2, panel_end - p);
        for (int64_t i = 0; i < n; i++)
          for (int64_t b = s.begin; b < s.end; b++)
            widen_bf16(linear::panel_of<linear::Bf16>(c, p + i), c.in, b, tiles + (i * kStretch + b - s.begin) * kTileBytes);
        auto pair = n == 2 ? two_row_tiles<T, 2> : two_row_tiles<T, 1>;
        auto sums = [&](int64_t r) { return s.at((r - row) / kTile, p - panel); };
        // Prefetches the next pair of panels, or, after the last, the next stretch of the first.
        const bool turn = p + 2 >= panel_end;
        const int64_t first = turn ? s.end : s.begin, steps = (s.end - s.begin) * ((alone - row + 2 * kTile - 1) / (2 * kTile));
        Fetch weights{(const std::byte*)(linear::panel_of<linear::Bf16>(c, turn ? panel : p + 2) + first * kBlock * kPair * kPanel),
                      turn && s.last ? 0 : (s.end - s.begin) * kBlock * kPair * kPanel * 2 / 64, steps};
        configure<T>(kTile, kTile);
        for (int64_t r = row; r < pairs_end; r += 2 * kTile) pair(c, r, kTile, p, tiles, s, sums(r), weights);
        if (second <= 0) continue;
        configure<T>(kTile, second);
        pair(c, pairs_end, second, p, tiles, s, sums(pairs_end), weights);
      }
    });
  if (alone < row_end) {
    configure<T>(row_end - alone, row_end - alone);
    few_rows_panels<T, 4>(c, alone, row_end - alone, panel, panel_end);
  }
  T::release();
}

// One row of bf16 weights on vectors, in the arithmetic of a tile of one row: in every block, the even inputs' products are one chain and
// the odd ones' another, high pieces before low ones, with denormals flushed to 0. It is bound by reading the weights.

// Activations of the row: for every block its 32 high pieces as f32, then its low ones.
constexpr int64_t kRowBlock = 2 * kBlock;
inline int64_t row_bytes(int64_t in, int64_t rows) { return rows * blocks_of(in) * kRowBlock * 4; }
inline void split_row_part(const float* x, int64_t in, int64_t row, int64_t first, int64_t n, std::byte* rounded) {
  float* out = (float*)(rounded + row_bytes(in, row)) + first / kBlock * kRowBlock;
  for (int64_t k = 0; k < n; k += kLanes) {
    const Vec v = k + kLanes <= n ? load(x + k) : load_n(x + k, int(n - k)), high{to_bf16(v.v)};
    float* to = out + k / kBlock * kRowBlock + k % kBlock;
    store(to, high);
    store(to + kBlock, {low_piece(v.v, high.v)});
  }
}

template <int Panels>
[[gnu::noinline]] void bf16_row_sums(const uint16_t* w, int64_t in, const float* x, float* sums) {
  const __m512i first = _mm512_slli_epi32(_mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0), 16);
  const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(16 << 16));
  auto widen = [](__m512i order, __m512i two) { return Vec{_mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(0xaaaaaaaa, order, two))}; };
  constexpr int64_t kStep = kPair * 2 * kPanel;
  Vec acc[Panels];
  for (Vec& a : acc) a = zero();
  for (int64_t k = 0; k < in; k += kBlock, x += kRowBlock) {
    Vec sum[Panels][4];  // even and odd, of high pieces, of low ones
    for (auto& panel : sum)
      for (Vec& v : panel) v = zero();
    const int64_t left = least(in - k, kBlock);
    for (int64_t i = 0; i < left; i += 2, w += kStep) {
      linear::fetch_ahead<64 * Panels>(w);
      for (int p = 0; p < Panels; p++) {
        const uint16_t* at = w + p * 2 * kPanel;
        const __m512i two = i + 2 <= left ? _mm512_loadu_si512(at) : _mm512_zextsi256_si512(_mm256_loadu_si256((const __m256i*)at));
        const Vec even = widen(first, two), odd = widen(second, two);
        sum[p][0] = fma(set1(x[i]), even, sum[p][0]);
        sum[p][1] = fma(set1(x[i + 1]), odd, sum[p][1]);
        sum[p][2] = fma(set1(x[kBlock + i]), even, sum[p][2]);
        sum[p][3] = fma(set1(x[kBlock + i + 1]), odd, sum[p][3]);
      }
    }
    for (int p = 0; p < Panels; p++) acc[p] = add(add(acc[p], add(sum[p][0], sum[p][1])), add(sum[p][2], sum[p][3]));
  }
  for (int p = 0; p < Panels; p++) store(sums + p * kPanel, acc[p]);
}

inline void run_bf16_row(const LinearCall& c, int64_t row, int64_t, int64_t panel, int64_t panel_end, float*) {
  const auto* x = (const float*)(c.rounded + row_bytes(c.in, row));
  auto panels = [&]<int Panels>(int64_t p, std::integral_constant<int, Panels>) {
    alignas(64) float sums[Panels * kPanel];
    const unsigned before = _mm_getcsr();
    _mm_setcsr(before | 0x8040);  // flush to zero, denormals are zero
    bf16_row_sums<Panels>(linear::panel_of<linear::Bf16>(c, p), c.in, x, sums);
    _mm_setcsr(before);
    for (int i = 0; i < Panels; i++) finish(c, row, p + i, load(sums + i * kPanel));
  };
  linear::pairs(
      panel, panel_end, [&](int64_t p) { panels(p, std::integral_constant<int, kPair>{}); },
      [&](int64_t p) { panels(p, std::integral_constant<int, 1>{}); });
}

template <class T, class W>
constexpr mr::LinearKernel quant_kernel(const char* layout) {
  return {layout, kFewRows, round_part<W>, split_rounded_bytes, run_quant<T, W>, 0};
}

template <class T>
struct Kernels {
  static constexpr mr::LinearKernel table[] = {
      linear::kStoredKernel,
      linear::float_kernel<linear::F32>("f32"),
      linear::float_kernel<linear::F16>("f16"),
      {"bf16", 1, split_row_part, row_bytes, run_bf16_row, 0},
      {"bf16", 2, split_part, split_bytes, run_bf16<T>, linear::kStretch},
      linear::one_row_kernel<linear::Int8>("int8"),
      linear::one_row_kernel<linear::Int4>("int4"),
      linear::one_row_kernel<linear::Int4Min>("int4 + minimum"),
      linear::one_row_kernel<linear::Int5>("int5"),
      linear::one_row_kernel<linear::Int5Min>("int5 + minimum"),
      linear::one_row_kernel<linear::Int4Levels>("int4 of two levels"),
      linear::one_row_kernel<linear::Int5Levels>("int5 of two levels"),
      linear::one_row_kernel<linear::Int6Levels>("int6 of two levels"),
      linear::one_row_kernel<linear::Int3Levels>("int3 of two levels"),
      linear::one_row_kernel<linear::Int2Levels>("int2 of two levels"),
      linear::one_row_kernel<linear::Iq4>("iq4"),
      linear::one_row_kernel<linear::Iq4Levels>("iq4 of two levels"),
      linear::one_row_kernel<linear::E2m1>("e2m1"),
      linear::one_row_kernel<linear::Int4Groups>("int4 in groups"),
      linear::one_row_kernel<linear::Int8Groups>("int8 in groups"),
      linear::quant_kernel<linear::Int8>("int8"),
      linear::quant_kernel<linear::Int4>("int4"),
      linear::quant_kernel<linear::Int4Min>("int4 + minimum"),
      linear::quant_kernel<linear::Int5>("int5"),
      linear::quant_kernel<linear::Int5Min>("int5 + minimum"),
      linear::quant_kernel<linear::Int4Levels>("int4 of two levels"),
      linear::quant_kernel<linear::Int5Levels>("int5 of two levels"),
      linear::quant_kernel<linear::Int6Levels>("int6 of two levels"),
      linear::quant_kernel<linear::Int3Levels>("int3 of two levels"),
      linear::quant_kernel<linear::Int2Levels>("int2 of two levels"),
      linear::quant_kernel<linear::Iq4>("iq4"),
      linear::quant_kernel<linear::Iq4Levels>("iq4 of two levels"),
      linear::quant_kernel<linear::E2m1>("e2m1"),
      linear::quant_kernel<linear::Int4Groups>("int4 in groups"),
      linear::quant_kernel<linear::Int8Groups>("int8 in groups"),
      quant_kernel<T, linear::Int4Groups>("int4 in groups"),
      quant_kernel<T, linear::Int8Groups>("int8 in groups"),
      quant_kernel<T, linear::Iq4>("iq4"),
      quant_kernel<T, linear::Iq4Levels>("iq4 of two levels"),
      quant_kernel<T, linear::E2m1>("e2m1"),
      quant_kernel<T, linear::Int8>("int8"),
      quant_kernel<T, linear::Int4>("int4"),
      quant_kernel<T, linear::Int4Min>("int4 + minimum"),
      quant_kernel<T, linear::Int5>("int5"),
      quant_kernel<T, linear::Int5Min>("int5 + minimum"),
      quant_kernel<T, linear::Int4Levels>("int4 of two levels"),
      quant_kernel<T, linear::Int5Levels>("int5 of two levels"),
  };
  // Widened panels (bf16: a stretch of two, and partial sums), or the scratch of vector kernels, if larger.
  static int64_t scratch_floats(int64_t in, int64_t rows, int64_t panels) {
    const int64_t whole = kScratchPanels * blocks_of(in) * kTileBytes / 4;
    const int64_t stretch = kStretchFloats + (rows + kTile - 1) / kTile * kTile * panels * kPanel;
    const int64_t vectors = linear::scratch_floats(in, rows, panels), tiles = whole > stretch ? whole : stretch;
    return tiles > vectors ? tiles : vectors;
  }
  static constexpr mr::LinearKernels all{table, sizeof(table) / sizeof(table[0]), scratch_floats, 2 * kTile, 448 << 10, 16};
};

}  // namespace amx
}  // namespace
