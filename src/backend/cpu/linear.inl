// Matrix products of f32 or rounded activations with packed weights; linear_kernels.h fixes the arithmetic. Written once on
// Vec and IVec and compiled per instruction set. A tile is Rows activation rows by Panels weight panels held in registers;
// every output is one chain over the inputs in any tile, so results do not depend on the tiling.
#pragma once

#include "backend/cpu/linear_codes.inl"
#include "backend/cpu/linear_float.inl"
#include "backend/cpu/linear_kernels.h"

namespace {
namespace linear {

template <class W>
constexpr int64_t kInputsOf = W::kBlocks * kBlock;  // in a block

inline int64_t rounded_bytes(int64_t in, int64_t rows) { return rows * (in / kBlock) * int64_t(sizeof(RoundedBlock)); }

template <class W>
void round_part(const float* x, int64_t in, int64_t row, int64_t first, int64_t n, std::byte* rounded) {
  RoundedBlock* out = (RoundedBlock*)rounded + (row * in + first) / kBlock;
  for (int64_t b = 0; b < n / kBlock; b++, x += kBlock, out++) {
    uint32_t bits = max_magnitude(x);
    float largest = __builtin_bit_cast(float, bits);
    bool none = bits < 0x0d800000u;  // below 2^-100: flushed to 0
    bool bad = bits >= 0x7f800000u;
    int32_t sums[2] = {};
    if (none || bad) {
      for (int i = 0; i < kBlock; i++) out->q[i] = 0;
      out->scale = bad ? __builtin_nanf("") : 0;
    } else {
      sums[0] = round_32(x, 32639.0f / largest, out->q);
      out->scale = largest / 32639.0f;
      if constexpr (W::kGroups == 2) {
        for (int i = kBlock / 2; i < kBlock; i++) sums[1] += out->q[i];
        sums[0] -= sums[1];
      }
    }
    for (int h = 0; h < W::kGroups; h++) {
      if constexpr (W::kMinimum)
        out->sum[h] = (W::kSubtracts ? -out->scale : out->scale) * float(sums[h]);
      else
        out->start[h] = -W::kOffset * sums[h];
    }
  }
}

// Adds scaled dots, and minima, of one group to the sums. Rounded rows are `blocks` apart.
template <class W, int Rows, int H>
[[gnu::always_inline]] inline void add_dots(Vec* acc, const IVec* dots, const W& panel, const uint8_t* w, int j, const RoundedBlock* x,
                                            int64_t blocks) {
  Vec scale = panel.scale(w, j, H);
  for (int r = 0; r < Rows; r++) acc[r] = fma(to_float(dots[r]), mul(scale, set1(x[r * blocks].scale)), acc[r]);
  if constexpr (W::kMinimum) {
    Vec minimum = panel.minimum(w, j, H);
    for (int r = 0; r < Rows; r++) acc[r] = fma(minimum, set1(x[r * blocks].sum[H]), acc[r]);
  }
}

// w: the panel's blocks from the beginning of the stretch, which is whole blocks.
template <class W, int Rows>
void quant_tile(const LinearCall& c, int64_t row, int64_t panel, const uint8_t* w, const Stretch& s) {
  const W at(c, panel);
  const int64_t blocks = c.in / kBlock;
  const RoundedBlock* x = (const RoundedBlock*)c.rounded + row * blocks + s.begin / kBlock;
  Vec acc[Rows];
  for (int r = 0; r < Rows; r++) acc[r] = sum_before(s, r);
  if (s.end == c.in) fetch_outputs<Rows, 1>(c, row, panel);
  for (int64_t k = s.begin; k < s.end; k += W::kBlocks * kBlock, w += W::kBytes)
    for (int j = 0; j < W::kBlocks; j++, x++)
      W::halves([&]<int H>(std::integral_constant<int, H>) __attribute__((always_inline)) {
        IVec sum[Rows];
        for (int r = 0; r < Rows; r++) sum[r] = set_all(W::kMinimum ? 0 : x[r * blocks].start[H]);
        W::template pairs<H>(
            w, j, [&](IVec pair, int first) __attribute__((always_inline)) {
              for (int r = 0; r < Rows; r++) sum[r] = dot(sum[r], pair, load_pair(x[r * blocks].q + first));
            });
        add_dots<W, Rows, H>(acc, sum, at, w, j, x, blocks);
      });
  for (int r = 0; r < Rows; r++) keep_sum(c, s, row, panel, r, 0, acc[r]);
}

// The common formats have tiles of every height, the others of half as many rows each time: compilers take minutes for every height of all.
template <class W>
constexpr bool kEveryHeight = __is_same(W, Int8) || __is_same(W, Int4) || __is_same(W, Int4Min);
template <class W>
constexpr int lower(int rows) {
  return kEveryHeight<W> ? rows - 1 : rows / 2;
}
template <class W>
inline bool takes_tiles_of(int height, int64_t rows) {
  return kEveryHeight<W> ? tile_rows(rows, height) == height : rows >= height;
}

// A tile's activations stay in L1 while the panels stream through.
template <class W, int Rows>
void quant_rows(const LinearCall& c, int64_t row, int64_t row_end, int64_t panel, int64_t panel_end, Stretch s) {
  const int64_t bytes = c.in / kInputsOf<W> * W::kBytes;
  const uint8_t* w = (const uint8_t*)c.packed + s.begin / kInputsOf<W> * W::kBytes;
  if (takes_tiles_of<W>(Rows, row_end - row))
    for (; row + Rows <= row_end; row += Rows, s.sums += Rows * kPanel) {
      Stretch at = s;
      for (int64_t p = panel; p < panel_end; p++, at.sums += s.next_panel) quant_tile<W, Rows>(c, row, p, w + p * bytes, at);
    }
  if constexpr (Rows > 1)
    if (row < row_end) quant_rows<W, lower<W>(Rows)>(c, row, row_end, panel, panel_end, s);
}

#if defined(__AVX2__) && !defined(__AVX512F__)
// Many rows on AVX2, which is bound by its 16 registers and issue slots: tiles read a copy of the weights as pairs of int16, offset
// subtracted, and have nothing to unpack. A block of the copy is 16 vectors, in the order of a RoundedBlock.
constexpr int kWideRows = 6;

template <class W>
void widen_pairs(const uint8_t* block, int64_t blocks, uint8_t* copy) {
  for (int64_t b = 0; b < blocks; b++, block += W::kBytes)
    for (int j = 0; j < W::kBlocks; j++, copy += 16 * 64)
      W::halves([&]<int H>(std::integral_constant<int, H>) __attribute__((always_inline)) {
        W::template pairs<H>(
            block, j, [&](IVec pair, int at) __attribute__((always_inline)) { store_bytes(copy + 32 * at, sub16(pair, W::kOffset)); });
      });
}

template <class W, int Rows>
void wide_tile(const LinearCall& c, int64_t row, int64_t panel, const uint8_t* w, const uint8_t* copy, const Stretch& s) {
  const W at(c, panel);
  const int64_t blocks = c.in / kBlock;
  const RoundedBlock* x = (const RoundedBlock*)c.rounded + row * blocks + s.begin / kBlock;
  Vec acc[Rows];
  for (int r = 0; r < Rows; r++) acc[r] = sum_before(s, r);
  if (s.end == c.in) fetch_outputs<Rows, 1>(c, row, panel);
  for (int64_t k = s.begin; k < s.end; k += kInputsOf<W>, w += W::kBytes)
    for (int j = 0; j < W::kBlocks; j++, copy += 16 * 64, x++)
      W::halves([&]<int H>(std::integral_constant<int, H>) __attribute__((always_inline)) {
        constexpr int kFirst = H * 8, kEnd = kFirst + 16 / W::kGroups;
        IVec sum[Rows];
        IVec first = load_bytes(copy + 64 * kFirst);
        for (int r = 0; r < Rows; r++) sum[r] = dot(first, load_pair(x[r * blocks].q + 2 * kFirst));
#pragma GCC unroll 15
        for (int i = kFirst + 1; i < kEnd; i++) {
          IVec pair = load_bytes(copy + 64 * i);
          for (int r = 0; r < Rows; r++) sum[r] = dot(sum[r], pair, load_pair(x[r * blocks].q + 2 * i));
        }
        add_dots<W, Rows, H>(acc, sum, at, w, j, x, blocks);
      });
  for (int r = 0; r < Rows; r++) keep_sum(c, s, row, panel, r, 0, acc[r]);
}

template <class W, int Rows>
void wide_rows(const LinearCall& c, int64_t row, int64_t row_end, int64_t panel, const uint8_t* w, const uint8_t* copy, Stretch s) {
  if (takes_tiles_of<W>(Rows, row_end - row))
    for (; row + Rows <= row_end; row += Rows, s.sums += Rows * kPanel) wide_tile<W, Rows>(c, row, panel, w, copy, s);
  if constexpr (Rows > 1)
    if (row < row_end) wide_rows<W, lower<W>(Rows)>(c, row, row_end, panel, w, copy, s);
}

template <class W>
void run_wide(const LinearCall& c, int64_t row, int64_t row_end, int64_t panel, int64_t panel_end, float* scratch) {
  const int64_t bytes = c.in / kInputsOf<W> * W::kBytes, rows = row_end - row;
  auto* copy = (uint8_t*)scratch;
  float* sums = scratch + kLongestStretch * kPair * kPanel;
  const int64_t stretch = stretch_of(c.in, kInputsOf<W>);
  for (int64_t k = 0; k < c.in; k += stretch)
    for (int64_t p = panel; p < panel_end; p++) {
      const uint8_t* w = (const uint8_t*)c.packed + p * bytes + k / kInputsOf<W> * W::kBytes;
      const Stretch s{k, k + stretch < c.in ? k + stretch : c.in, sums + (p - panel) * rows * kPanel};
      widen_pairs<W>(w, (s.end - k) / kInputsOf<W>, copy);
      wide_rows<W, kWideRows>(c, row, row_end, p, w, copy, s);
    }
}
#endif

template <class W>
void run_quant(const LinearCall& c, int64_t row, int64_t row_end, int64_t panel, int64_t panel_end, float* scratch) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  if (row_end - row > 2 * kWideRows) return run_wide<W>(c, row, row_end, panel, panel_end, scratch);
#endif
  const int64_t rows = row_end - row, stretch = kQuantStretch && rows > 2 * kQuantRows ? stretch_of(c.in, kInputsOf<W>) : c.in;
  for (int64_t k = 0; k < c.in; k += stretch)
    quant_rows<W, kQuantRows>(c, row, row_end, panel, panel_end, {k, k + stretch < c.in ? k + stretch : c.in, scratch, rows * kPanel});
}

#if defined(__AVX512VNNI__)
constexpr int64_t kBytesUpTo = 255;  // largest stored weight for which one_row_kernel's accumulators cannot overflow
#elif defined(__AVX512F__)
constexpr int64_t kBytesUpTo = 15;
#else
constexpr int64_t kBytesUpTo = 0;
#endif

// One row on AVX-512: the same exact sums from bytes; faster for one row, slower for many.
#if defined(__AVX512F__)
template <class W>
void round_to_bytes(const float* x, int64_t in, int64_t row, int64_t first, int64_t n, std::byte* rounded) {
  round_part<W>(x, in, row, first, n, rounded);
  RoundedBlock* out = (RoundedBlock*)rounded + (row * in + first) / kBlock;
  for (int64_t b = 0; b < n / kBlock; b++) split_bytes(out[b]);
}

template <class W>
void byte_row(const LinearCall& c, int64_t row, int64_t, int64_t panel, int64_t panel_end, float*) {
  const int64_t blocks = c.in / kInputsOf<W>;
  const uint8_t* w = (const uint8_t*)c.packed + panel * blocks * W::kBytes;
  for (; panel < panel_end; panel++) {
    const RoundedBlock* x = (const RoundedBlock*)c.rounded + row * (c.in / kBlock);
    const W at(c, panel);
    Vec acc = zero();
    for (int64_t b = 0; b < blocks; b++, w += W::kBytes)
      for (int j = 0; j < W::kBlocks; j++, x++) {
        fetch_ahead<W::kBytes / W::kBlocks>(w + j * (W::kBytes / W::kBlocks));
        W::halves([&]<int H>(std::integral_constant<int, H>) __attribute__((always_inline)) {
          ByteSum sum;
          W::template quads<H>(
              w, j, [&](IVec quad, int first) __attribute__((always_inline)) { sum.add(quad, *x, first); });
          const IVec dot = sum.total(W::kMinimum ? 0 : x->start[H]);
          add_dots<W, 1, H>(&acc, &dot, at, w, j, x, 0);
        });
      }
    finish(c, row, panel, acc);
  }
}

template <class W>
constexpr mr::LinearKernel one_row_kernel(const char* layout) {
  static_assert(W::kLargest <= kBytesUpTo);
  return {layout, 1, round_to_bytes<W>, rounded_bytes, byte_row<W>, 0};
}
#endif

template <class W>
constexpr mr::LinearKernel float_kernel(const char* layout) {
  return {layout, 1, nullptr, nullptr, run_float<W>, kStretch};
}
template <class W>
constexpr mr::LinearKernel quant_kernel(const char* layout) {
  return {layout, W::kLargest <= kBytesUpTo ? 2 : 1, round_part<W>, rounded_bytes, run_quant<W>, kQuantStretch};
}

constexpr mr::LinearKernel kStoredKernel{"stored", 1, nullptr, nullptr, run_stored, kStretch};

constexpr int kTileRows = 24;  // every tile height divides it

// A widened stretch of a pair of panels, and partial sums.
constexpr int64_t scratch_floats(int64_t, int64_t rows, int64_t panels) {
  return kLongestStretch * kPair * kPanel + rows * panels * kPanel;
}

constexpr mr::LinearKernel kTable[] = {
    kStoredKernel,
    float_kernel<F32>("f32"),
    float_kernel<F16>("f16"),
    float_kernel<Bf16>("bf16"),
#if defined(__AVX512F__)
    one_row_kernel<Int4>("int4"),
    one_row_kernel<Int4Min>("int4 + minimum"),
    one_row_kernel<Int4Levels>("int4 of two levels"),
    one_row_kernel<Int3Levels>("int3 of two levels"),
    one_row_kernel<Int2Levels>("int2 of two levels"),
    one_row_kernel<Int4Groups>("int4 in groups"),
#endif
#if defined(__AVX512VNNI__)
    one_row_kernel<Int8>("int8"),
    one_row_kernel<Int5>("int5"),
    one_row_kernel<Int5Min>("int5 + minimum"),
    one_row_kernel<Int5Levels>("int5 of two levels"),
    one_row_kernel<Int6Levels>("int6 of two levels"),
    one_row_kernel<Iq4>("iq4"),
    one_row_kernel<Iq4Levels>("iq4 of two levels"),
    one_row_kernel<E2m1>("e2m1"),
    one_row_kernel<Int8Groups>("int8 in groups"),
#endif
    quant_kernel<Int8>("int8"),
    quant_kernel<Int4>("int4"),
    quant_kernel<Int4Min>("int4 + minimum"),
    quant_kernel<Int5>("int5"),
    quant_kernel<Int5Min>("int5 + minimum"),
    quant_kernel<Int4Levels>("int4 of two levels"),
    quant_kernel<Int5Levels>("int5 of two levels"),
    quant_kernel<Int6Levels>("int6 of two levels"),
    quant_kernel<Int3Levels>("int3 of two levels"),
    quant_kernel<Int2Levels>("int2 of two levels"),
    quant_kernel<Iq4>("iq4"),
    quant_kernel<Iq4Levels>("iq4 of two levels"),
    quant_kernel<E2m1>("e2m1"),
    quant_kernel<Int4Groups>("int4 in groups"),
    quant_kernel<Int8Groups>("int8 in groups"),
};
constexpr mr::LinearKernels kKernels{kTable, sizeof(kTable) / sizeof(kTable[0]), scratch_floats, kTileRows, 192 << 10, 16};

}  // namespace linear
}  // namespace
