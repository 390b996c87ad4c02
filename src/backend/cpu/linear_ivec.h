// IVec: 16 int32 lanes, or 32 int16, on every instruction set, and the rounding of activations. Include after vec.h, in one
// translation unit per instruction set; everything has internal linkage.
#pragma once

#include <cstdint>

#include "backend/cpu/linear_kernels.h"
#include "backend/cpu/vec.h"

namespace {

using mr::RoundedBlock;

inline int32_t word_at(const int16_t* p) {
  int32_t w;
  __builtin_memcpy(&w, p, 4);
  return w;
}

#if defined(__AVX512F__)

struct IVec {
  __m512i v;
};
using Pair = __m512i;  // two int16 of one row, in every lane

inline IVec load_bytes(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
inline IVec set_all(int32_t x) { return {_mm512_set1_epi32(x)}; }
inline Pair load_pair(const int16_t* p) { return _mm512_set1_epi32(word_at(p)); }
inline IVec and_bytes(IVec a, int8_t mask) { return {_mm512_and_si512(a.v, _mm512_set1_epi8(mask))}; }
inline IVec and16(IVec a, int16_t mask) { return {_mm512_and_si512(a.v, _mm512_set1_epi16(mask))}; }
template <int N>
inline IVec shift16(IVec a) {
  return {_mm512_srli_epi16(a.v, N)};
}
template <int N>
inline IVec left16(IVec a) {
  return {_mm512_slli_epi16(a.v, N)};
}
inline IVec either(IVec a, IVec b) { return {_mm512_or_si512(a.v, b.v)}; }
// table[a] of every byte, below 16.
inline IVec lookup(IVec a, const uint8_t* table) {
  return {_mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)table)), a.v)};
}
inline IVec dot(IVec acc, IVec w, Pair q) {  // acc + w[0] q[0] + w[1] q[1]
#if defined(__AVX512VNNI__)
  return {_mm512_dpwssd_epi32(acc.v, w.v, q)};
#else
  return {_mm512_add_epi32(acc.v, _mm512_madd_epi16(w.v, q))};
#endif
}
inline Vec to_float(IVec a) { return {_mm512_cvtepi32_ps(a.v)}; }

inline __m512i load_quad(const int8_t* p) {
  int32_t four;
  __builtin_memcpy(&four, p, 4);
  return _mm512_set1_epi32(four);
}
// A block's dot product of unsigned bytes with activations split into bytes: weights take fewer instructions to unpack than as pairs.
// Without VNNI the accumulators have 16 bits, enough for weights below 16: 8 times 2 products of at most 15 * 128.
struct ByteSum {
  __m512i upper = _mm512_setzero_si512(), lower = _mm512_setzero_si512();
  void add(IVec w, const RoundedBlock& x, int at) {
    __m512i u = load_quad(x.bytes[0] + at), l = load_quad(x.bytes[1] + at);
#if defined(__AVX512VNNI__)
    upper = _mm512_dpbusd_epi32(upper, w.v, u);
    lower = _mm512_dpbusd_epi32(lower, w.v, l);
#else
    upper = _mm512_add_epi16(upper, _mm512_maddubs_epi16(w.v, u));
    lower = _mm512_add_epi16(lower, _mm512_maddubs_epi16(w.v, l));
#endif
  }
  IVec total(int32_t start) const {
#if defined(__AVX512VNNI__)
    __m512i sum = _mm512_add_epi32(_mm512_slli_epi32(upper, 8), lower);
#else
    __m512i sum = _mm512_add_epi32(_mm512_madd_epi16(upper, _mm512_set1_epi16(256)), _mm512_madd_epi16(lower, _mm512_set1_epi16(1)));
#endif
    return {_mm512_add_epi32(sum, _mm512_set1_epi32(start))};
  }
};
// Pairs to bytes, in place.
inline void split_bytes(RoundedBlock& x) {
  __m512i q = _mm512_shufflehi_epi16(_mm512_shufflelo_epi16(_mm512_loadu_si512(x.q), 0xd8), 0xd8);
  _mm256_storeu_si256((__m256i*)x.bytes[0], _mm512_cvtepi16_epi8(_mm512_srai_epi16(_mm512_add_epi16(q, _mm512_set1_epi16(128)), 8)));
  _mm256_storeu_si256((__m256i*)x.bytes[1], _mm512_cvtepi16_epi8(q));
}

// The bits of the largest |x| of 32: integer order is the order of the values, NaN above infinity.
inline uint32_t max_magnitude(const float* x) {
  __m512i m = _mm512_set1_epi32(0x7fffffff);
  __m512i a = _mm512_and_si512(_mm512_loadu_si512(x), m), b = _mm512_and_si512(_mm512_loadu_si512(x + 16), m);
  a = _mm512_max_epu32(a, b);
  __m256i h = _mm256_max_epu32(_mm512_castsi512_si256(a), _mm512_extracti64x4_epi64(a, 1));
  __m128i s = _mm_max_epu32(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1));
  s = _mm_max_epu32(s, _mm_shuffle_epi32(s, 0x4e));
  s = _mm_max_epu32(s, _mm_shuffle_epi32(s, 0xb1));
  return uint32_t(_mm_cvtsi128_si32(s));
}
// q = x * inverse rounded to nearest even, 32 of them, in RoundedBlock's order; returns their sum.
inline int32_t round_32(const float* x, float inverse, int16_t* q) {
  __m512 f = _mm512_set1_ps(inverse);
  __m512i a = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x), f)), b = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + 16), f));
  __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi32_epi16(a)), _mm512_cvtepi32_epi16(b), 1);
  _mm512_storeu_si512(q, _mm512_shufflehi_epi16(_mm512_shufflelo_epi16(both, 0xd8), 0xd8));
  a = _mm512_add_epi32(a, b);
  __m256i h = _mm256_add_epi32(_mm512_castsi512_si256(a), _mm512_extracti64x4_epi64(a, 1));
  __m128i s = _mm_add_epi32(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1));
  return _mm_cvtsi128_si32(s);
}

#elif defined(__AVX2__)

struct IVec {
  __m256i a, b;
};
using Pair = __m256i;

inline IVec load_bytes(const uint8_t* p) { return {_mm256_loadu_si256((const __m256i*)p), _mm256_loadu_si256((const __m256i*)(p + 32))}; }
inline IVec set_all(int32_t x) {
  __m256i v = _mm256_set1_epi32(x);
  return {v, v};
}
inline Pair load_pair(const int16_t* p) { return _mm256_set1_epi32(word_at(p)); }
inline IVec and_bytes(IVec x, int8_t mask) {
  __m256i m = _mm256_set1_epi8(mask);
  return {_mm256_and_si256(x.a, m), _mm256_and_si256(x.b, m)};
}
inline IVec and16(IVec x, int16_t mask) {
  __m256i m = _mm256_set1_epi16(mask);
  return {_mm256_and_si256(x.a, m), _mm256_and_si256(x.b, m)};
}
template <int N>
inline IVec shift16(IVec x) {
  return {_mm256_srli_epi16(x.a, N), _mm256_srli_epi16(x.b, N)};
}
template <int N>
inline IVec left16(IVec x) {
  return {_mm256_slli_epi16(x.a, N), _mm256_slli_epi16(x.b, N)};
}
inline IVec either(IVec x, IVec y) { return {_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)}; }
inline IVec lookup(IVec x, const uint8_t* table) {
  __m256i t = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)table));
  return {_mm256_shuffle_epi8(t, x.a), _mm256_shuffle_epi8(t, x.b)};
}
inline IVec dot(IVec acc, IVec w, Pair q) {
  acc = {_mm256_add_epi32(acc.a, _mm256_madd_epi16(w.a, q)), _mm256_add_epi32(acc.b, _mm256_madd_epi16(w.b, q))};
  asm volatile("" : "+x"(acc.a));  // fixes the order: gcc would load all rows first and spill accumulators
  asm volatile("" : "+x"(acc.b));  // one at a time: both in one statement cost extra moves
  return acc;
}
inline IVec dot(IVec w, Pair q) { return {_mm256_madd_epi16(w.a, q), _mm256_madd_epi16(w.b, q)}; }
inline IVec sub16(IVec x, int16_t n) {
  __m256i v = _mm256_set1_epi16(n);
  return {_mm256_sub_epi16(x.a, v), _mm256_sub_epi16(x.b, v)};
}
inline void store_bytes(uint8_t* p, IVec x) {
  _mm256_storeu_si256((__m256i*)p, x.a);
  _mm256_storeu_si256((__m256i*)(p + 32), x.b);
}
inline Vec to_float(IVec x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }

inline uint32_t max_magnitude(const float* x) {
  __m256i m = _mm256_set1_epi32(0x7fffffff), a = _mm256_setzero_si256();
  for (int i = 0; i < 32; i += 8) a = _mm256_max_epu32(a, _mm256_and_si256(_mm256_loadu_si256((const __m256i*)(x + i)), m));
  __m128i s = _mm_max_epu32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  s = _mm_max_epu32(s, _mm_shuffle_epi32(s, 0x4e));
  s = _mm_max_epu32(s, _mm_shuffle_epi32(s, 0xb1));
  return uint32_t(_mm_cvtsi128_si32(s));
}
inline int32_t round_32(const float* x, float inverse, int16_t* q) {
  __m256 f = _mm256_set1_ps(inverse);
  __m256i total = _mm256_setzero_si256();
  for (int i = 0; i < 32; i += 16) {
    __m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + i), f)),
            b = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + i + 8), f));
    __m256i both = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
    _mm256_storeu_si256((__m256i*)(q + i), _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(both, 0xd8), 0xd8));
    total = _mm256_add_epi32(total, _mm256_add_epi32(a, b));
  }
  __m128i s = _mm_add_epi32(_mm256_castsi256_si128(total), _mm256_extracti128_si256(total, 1));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1));
  return _mm_cvtsi128_si32(s);
}

#else

struct IVec {  // functions are calls: inlined into every tile they would take minutes to compile
  uint32_t v[kLanes];
};
struct Pair {
  int16_t first, second;
};

template <class F>
inline IVec ilanes(F f) {
  IVec r;
  for (int i = 0; i < kLanes; i++) r.v[i] = f(i);
  return r;
}
[[gnu::noinline]] IVec load_bytes(const uint8_t* p) {
  return ilanes(
      [=](int i) { return p[4 * i] | uint32_t(p[4 * i + 1]) << 8 | uint32_t(p[4 * i + 2]) << 16 | uint32_t(p[4 * i + 3]) << 24; });
}
inline IVec set_all(int32_t x) {
  return ilanes([=](int) { return uint32_t(x); });
}
inline Pair load_pair(const int16_t* p) {
  int32_t w = word_at(p);  // one load: gcc 12 vectorizes two, and reads beyond the last row
  return {int16_t(w), int16_t(w >> 16)};
}
[[gnu::noinline]] IVec and_bytes(IVec a, int8_t mask) {
  return ilanes([&](int i) { return a.v[i] & uint8_t(mask) * 0x1010101u; });
}
[[gnu::noinline]] IVec and16(IVec a, int16_t mask) {
  return ilanes([&](int i) { return a.v[i] & uint16_t(mask) * 0x10001u; });
}
template <int N>
[[gnu::noinline]] IVec shift16(IVec a) {
  return ilanes([&](int i) { return (a.v[i] >> N & 0xffff0000u) | (a.v[i] & 0xffffu) >> N; });
}
template <int N>
[[gnu::noinline]] IVec left16(IVec a) {
  return ilanes([&](int i) { return (a.v[i] & 0xffff0000u) << N | (a.v[i] << N & 0xffffu); });
}
[[gnu::noinline]] IVec either(IVec a, IVec b) {
  return ilanes([&](int i) { return a.v[i] | b.v[i]; });
}
[[gnu::noinline]] IVec lookup(IVec a, const uint8_t* table) {
  return ilanes([&](int i) {
    uint32_t r = 0;
    for (int b = 0; b < 32; b += 8) r |= uint32_t(table[a.v[i] >> b & 15]) << b;
    return r;
  });
}
[[gnu::noinline]] IVec dot(IVec acc, IVec w, Pair q) {
  return ilanes([&](int i) { return acc.v[i] + uint32_t(int16_t(w.v[i]) * q.first + int16_t(w.v[i] >> 16) * q.second); });
}
inline Vec to_float(IVec a) {
  return lanes([&](int i) { return float(int32_t(a.v[i])); });
}

inline uint32_t max_magnitude(const float* x) {
  uint32_t m = 0;
  for (int i = 0; i < 32; i++) {
    uint32_t a = __builtin_bit_cast(uint32_t, x[i]) & 0x7fffffffu;
    m = a > m ? a : m;
  }
  return m;
}
inline int32_t round_32(const float* x, float inverse, int16_t* q) {
  constexpr int kOrder[4] = {0, 2, 1, 3};
  int32_t sum = 0;
  for (int i = 0; i < 32; i++) {
    float r = x[(i & ~3) + kOrder[i & 3]] * inverse + 12582912.0f;  // adding 1.5 * 2^23 rounds to an integer
    q[i] = int16_t(r - 12582912.0f);
    sum += q[i];
  }
  return sum;
}

#endif

}  // namespace
