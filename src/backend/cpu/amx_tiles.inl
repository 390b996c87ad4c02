// Operands of AMX's bf16 products as tiles: activations rounded or split into two bf16 pieces, weights widened from the packed format.
// Include after linear.inl.
#pragma once

#include <type_traits>

#include "backend/cpu/linear.inl"
#include "backend/cpu/tiles.h"

namespace {
namespace amx {

using linear::kBlock;
using linear::kPair;
using linear::kPanel;
using mr::RoundedBlock;

constexpr int kTile = 16;                                          // rows
constexpr int kPieceBytes = 64;                                    // one piece of 32 activations
constexpr int kTileBytes = 1024;                                   // 32 inputs of a panel
constexpr int64_t kStretch = linear::kLongestStretch / kBlock;     // most blocks of bf16 weights widened at a time
constexpr int64_t kStretchFloats = 2 * kStretch * kTileBytes / 4;  // of two panels

inline int64_t blocks_of(int64_t in) { return (in + kBlock - 1) / kBlock; }
inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// The upper halves of 32 floats that hold bf16 values.
inline __m512i upper_halves(__m512 a, __m512 b) {
  __m256i lo = _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(a), 16));
  __m256i hi = _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(b), 16));
  return _mm512_inserti64x4(_mm512_castsi256_si512(lo), hi, 1);
}

// Activations are stored tile by tile, 16 rows each: for every block of 32 inputs its high pieces [16][32], then its low
// ones; and then, for quantized weights, every block's scales [16] and sums [16].
struct Scaling {
  float scale[kTile], sum[kTile];
};
constexpr int64_t kPairBytes = 2 * kTileBytes;
// Stride between row tiles, skewed so that the same stretch of many tiles does not map to the same sets of the L2 cache.
inline int64_t tile_step(int64_t bytes) {
  constexpr int64_t kWay = 128 << 10, kSkew = 34 << 10;
  return bytes <= kStretch * kPairBytes ? bytes : (bytes - kSkew + kWay - 1) / kWay * kWay + kSkew;
}
inline int64_t split_tile_bytes(int64_t in) { return tile_step(blocks_of(in) * kPairBytes); }
inline int64_t split_bytes(int64_t in, int64_t rows) { return (rows + kTile - 1) / kTile * split_tile_bytes(in); }
inline int64_t scaled_tile_bytes(int64_t in) { return blocks_of(in) * (kPairBytes + int64_t(sizeof(Scaling))); }
inline int64_t split_rounded_bytes(int64_t in, int64_t rows) { return (rows + kTile - 1) / kTile * scaled_tile_bytes(in); }

template <class W>
void round_part(const float* x, int64_t in, int64_t row, int64_t first, int64_t n, std::byte* rounded) {
  std::byte* tile = rounded + row / kTile * scaled_tile_bytes(in);
  auto* scaling = (Scaling*)(tile + blocks_of(in) * kPairBytes) + first / kBlock;
  std::byte* out = tile + first / kBlock * kPairBytes + row % kTile * kPieceBytes;
  for (int64_t b = 0; b < n / kBlock; b++, x += kBlock, out += kPairBytes) {
    RoundedBlock block;
    linear::round_part<W>(x, kBlock, 0, 0, kBlock, (std::byte*)&block);
    __m512i q = _mm512_loadu_si512(block.q), low = _mm512_srai_epi16(_mm512_slli_epi16(q, 8), 8), high = _mm512_sub_epi16(q, low);
    auto store = [](std::byte* to, __m512i v) {
      __m512 a = _mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(_mm512_castsi512_si256(v)));
      __m512 b = _mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(_mm512_extracti64x4_epi64(v, 1)));
      _mm512_storeu_si512(to, upper_halves(a, b));
    };
    store(out, high);
    store(out + kTileBytes, low);
    scaling[b].scale[row % kTile] = block.scale;
    if constexpr (W::kMinimum) scaling[b].sum[row % kTile] = block.sum[0];
  }
}

// Rounds to nearest even; infinities and NaNs pass through.
inline __m512 to_bf16(__m512 x) {
  __m512i bits = _mm512_castps_si512(x), odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  __mmask16 finite = _mm512_cmplt_epu32_mask(_mm512_and_si512(rounded, _mm512_set1_epi32(0x7fffffff)), _mm512_set1_epi32(0x7f800000));
  __m512i kept = _mm512_mask_blend_epi32(finite, bits, rounded);
  return _mm512_castsi512_ps(_mm512_and_si512(kept, _mm512_set1_epi32(int(0xffff0000))));
}

// The remainder v - high as bf16; 0 for an infinity.
inline __m512 low_piece(__m512 v, __m512 high) {
  __m512 low = _mm512_sub_ps(v, high);
  return to_bf16(_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(low, low, _CMP_ORD_Q), low));
}

inline void split_part(const float* x, int64_t in, int64_t row, int64_t first, int64_t n, std::byte* rounded) {
  std::byte* out = rounded + split_bytes(in, row / kTile * kTile) + first / kBlock * kPairBytes + row % kTile * kPieceBytes;
  for (int64_t k = 0; k < n; k += kBlock, out += kPairBytes) {
    auto get = [&](int64_t at) {
      int64_t left = n - at;
      return left >= kLanes ? load(x + at).v : left > 0 ? load_n(x + at, int(left)).v : _mm512_setzero_ps();
    };
    __m512 a = get(k), b = get(k + kLanes), high_a = to_bf16(a), high_b = to_bf16(b);
    _mm512_storeu_si512(out, upper_halves(high_a, high_b));
    _mm512_storeu_si512(out + kTileBytes, upper_halves(low_piece(a, high_a), low_piece(b, high_b)));
  }
}

// Weights as tiles: row k of 16 holds inputs 2k and 2k + 1 of the 16 outputs as pairs (quantized: pair k of a RoundedBlock).

inline void widen_bf16(const uint16_t* panel, int64_t in, int64_t block, uint8_t* tile) {
  static const uint16_t order[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                     8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const __m512i pairs = _mm512_loadu_si512(order);
  constexpr int64_t kStep = kPair * 2 * kPanel;  // from two inputs to the next two
  const uint16_t* w = panel + block * kTile * kStep;
  const int64_t left = in - block * kBlock;
  for (int k = 0; k < kTile; k++) {
    __m512i two;
    if (2 * k + 2 <= left)
      two = _mm512_loadu_si512(w + k * kStep);
    else
      two = 2 * k < left ? _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i*)(w + k * kStep))) : _mm512_setzero_si512();
    if (2 * k + 1 == left) two = _mm512_inserti64x4(two, _mm256_setzero_si256(), 1);
    _mm512_storeu_si512(tile + 64 * k, _mm512_permutexvar_epi16(pairs, two));
  }
}

// Dequantize pairs of stored values to pairs of bf16.
struct Small {  // values below 32: table lookup
  __m512i table;
  explicit Small(int offset) {
    alignas(64) uint16_t values[32];
    for (int i = 0; i < 32; i++) values[i] = uint16_t(__builtin_bit_cast(uint32_t, float(i - offset)) >> 16);
    table = _mm512_load_si512(values);
  }
  __m512i operator()(__m512i pair) const { return _mm512_permutexvar_epi16(pair, table); }
};
struct Byte {  // values below 256: the low mantissa bits of the float 2^23 + value are the value
  __m512i magic = _mm512_set1_epi32(0x4b000000);
  __m512 base;
  explicit Byte(int offset) : base(_mm512_set1_ps(float(8388608 + offset))) {}
  __m512i operator()(__m512i pair) const {
    __m512i even = _mm512_or_si512(_mm512_and_si512(pair, _mm512_set1_epi32(0xffff)), magic);
    __m512i odd = _mm512_or_si512(_mm512_srli_epi32(pair, 16), magic);
    __m512 a = _mm512_sub_ps(_mm512_castsi512_ps(even), base), b = _mm512_sub_ps(_mm512_castsi512_ps(odd), base);
    __m512i low = _mm512_srli_epi32(_mm512_castps_si512(a), 16);
    return _mm512_or_si512(low, _mm512_and_si512(_mm512_castps_si512(b), _mm512_set1_epi32(int(0xffff0000))));
  }
};
template <class W>
struct Widen {
  using Map = std::conditional_t < W::kLargest<32, Small, Byte>;
  static void panel(const uint8_t* w, int64_t blocks, uint8_t* tiles) {
    const Map map(W::kOffset);
    for (int64_t b = 0; b < blocks; b += W::kBlocks, w += W::kBytes)
      for (int j = 0; j < W::kBlocks; j++, tiles += kTileBytes)
        W::template pairs<0>(w, j, [&](IVec pair, int at) { _mm512_storeu_si512(tiles + 32 * at, map(pair.v)); });
  }
};

// Tiles 0 to 3 are accumulators, 4 and 5 activations, 6 and 7 weights. `first` and `second`: rows of the two row tiles.
template <class T>
void configure(int64_t first, int64_t second) {
  TileShapes s;
  for (int i = 0; i < 8; i++) s.row_bytes[i] = 64;
  s.rows[0] = s.rows[1] = s.rows[4] = uint8_t(first);
  s.rows[2] = s.rows[3] = s.rows[5] = uint8_t(second);
  s.rows[6] = s.rows[7] = kTile;
  T::configure(s);
}

}  // namespace amx
}  // namespace
