// Vec: 16 floats on every instruction set (one zmm, two ymm, or an array), so that a kernel written once gives the same bits
// on all of them. Include inside one translation unit per instruction set: everything here has internal linkage, because a
// library inline compiled for AVX-512 could be kept by the linker for a machine that lacks it.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "core/float8.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace {

constexpr int kLanes = 16;

#if defined(__AVX512F__)

struct Vec { __m512 v; };

inline Vec zero() { return {_mm512_setzero_ps()}; }
inline Vec set1(float x) { return {_mm512_set1_ps(x)}; }
inline Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, Vec a) { _mm512_storeu_ps(p, a.v); }
inline __mmask16 first(int n) { return __mmask16((1u << n) - 1); }
inline Vec load_n(const float* p, int n) { return {_mm512_maskz_loadu_ps(first(n), p)}; }       // n < 16: the rest is 0
inline void store_n(float* p, Vec a, int n) { _mm512_mask_storeu_ps(p, first(n), a.v); }
inline Vec load_f16(const uint16_t* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p))}; }
inline Vec load_bf16(const uint16_t* p) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16))};
}
inline __m512i load_u8(const uint8_t* p) { return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p)); }
inline Vec load_low4(const uint8_t* p) { return {_mm512_cvtepi32_ps(_mm512_and_si512(load_u8(p), _mm512_set1_epi32(15)))}; }
inline Vec load_high4(const uint8_t* p) { return {_mm512_cvtepi32_ps(_mm512_srli_epi32(load_u8(p), 4))}; }
// 2^(byte - 128), subnormal for 0 and 1
inline Vec load_e8m0_half(const uint8_t* p) {
  __m512i e = load_u8(p), normal = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
  __m512i tiny = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), e);
  return {_mm512_castsi512_ps(_mm512_mask_blend_epi32(_mm512_cmplt_epi32_mask(e, _mm512_set1_epi32(2)), normal, tiny))};
}
inline Vec load_i8(const uint8_t* p) { return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)))}; }
inline Vec load_e5m2(const uint8_t* p) {  // the upper byte of an f16
  return {_mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i*)p)), 8))};
}
// 2^-8 of E4M3: an f16 of the same fraction and exponent, whose bias is 8 more. The sign, extended, is twice in front of it.
inline Vec load_e4m3(const uint8_t* p) {
  __m256i x = _mm256_slli_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)p)), 7);
  return {_mm512_cvtph_ps(_mm256_and_si256(x, _mm256_set1_epi16(short(0xbfff))))};
}
// Four bits of every lane, less 8.
inline Vec from_i4(__m512i x) {
  return {_mm512_permutexvar_ps(x, _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7))};
}
inline Vec load_i4(const uint8_t* p, int shift) { return from_i4(_mm512_srl_epi32(load_u8(p), _mm_cvtsi32_si128(shift))); }  // of 16 bytes
inline Vec load_i4_pairs(const uint8_t* p) {                                                                             // of 8 bytes
  __m128i x = _mm_loadl_epi64((const __m128i*)p);
  __m512i shift = _mm512_setr_epi32(0, 4, 0, 4, 0, 4, 0, 4, 0, 4, 0, 4, 0, 4, 0, 4);
  return from_i4(_mm512_srlv_epi32(_mm512_cvtepu8_epi32(_mm_unpacklo_epi8(x, x)), shift));
}
inline void store_f16(uint16_t* p, Vec a) { _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT)); }
inline void store_bf16(uint16_t* p, Vec a) {  // rounded to nearest even; a NaN stays one
  __m512i u = _mm512_castps_si512(a.v), odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
  __m512i up = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd);
  up = _mm512_mask_or_epi32(up, _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q), u, _mm512_set1_epi32(0x400000));
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(up, 16)));
}
inline Vec add(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Vec sub(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Vec mul(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Vec div(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
inline Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }                // a * b + c, rounded once
inline Vec max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
inline Vec min(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }
inline Vec round(Vec a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
inline Vec abs(Vec a) { return {_mm512_abs_ps(a.v)}; }
inline Vec select_lt(Vec a, Vec b, Vec yes, Vec no) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), no.v, yes.v)};
}
// 2^n for whole n in [-126, 127]
inline Vec exp2i(Vec n) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n.v), _mm512_set1_epi32(127)), 23))};
}
// Halves are folded: lane i + lane i+8, then +4, +2, +1.
inline float sum(Vec a) {
  __m256 h = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  q = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}
inline float max_lane(Vec a) {
  __m256 h = _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  q = _mm_max_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}

#elif defined(__AVX2__)

struct Vec { __m256 a, b; };

inline Vec zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline Vec set1(float x) { __m256 v = _mm256_set1_ps(x); return {v, v}; }
inline Vec load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, Vec v) { _mm256_storeu_ps(p, v.a); _mm256_storeu_ps(p + 8, v.b); }
inline __m256i first8(int n) { return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)); }
inline Vec load_n(const float* p, int n) { return {_mm256_maskload_ps(p, first8(n)), _mm256_maskload_ps(p + 8, first8(n - 8))}; }
inline void store_n(float* p, Vec v, int n) {
  _mm256_maskstore_ps(p, first8(n), v.a);
  _mm256_maskstore_ps(p + 8, first8(n - 8), v.b);
}
inline Vec load_f16(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)), _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(p + 8)))};
}
inline Vec load_bf16(const uint16_t* p) {
  __m256i lo = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), hi = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)(p + 8)));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(lo, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(hi, 16))};
}
inline __m256i load_u8x8(const uint8_t* p) { return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p)); }
inline Vec load_low4(const uint8_t* p) {
  __m256i m = _mm256_set1_epi32(15);
  return {_mm256_cvtepi32_ps(_mm256_and_si256(load_u8x8(p), m)), _mm256_cvtepi32_ps(_mm256_and_si256(load_u8x8(p + 8), m))};
}
inline Vec load_high4(const uint8_t* p) {
  return {_mm256_cvtepi32_ps(_mm256_srli_epi32(load_u8x8(p), 4)), _mm256_cvtepi32_ps(_mm256_srli_epi32(load_u8x8(p + 8), 4))};
}
inline __m256 e8m0_half8(__m256i e) {
  __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23), tiny = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
  return _mm256_castsi256_ps(_mm256_blendv_epi8(normal, tiny, _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e)));
}
inline Vec load_e8m0_half(const uint8_t* p) { return {e8m0_half8(load_u8x8(p)), e8m0_half8(load_u8x8(p + 8))}; }
inline Vec load_i8(const uint8_t* p) {
  __m128i bytes = _mm_loadu_si128((const __m128i*)p);
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8)))};
}
inline Vec from_f16x16(__m256i x) { return {_mm256_cvtph_ps(_mm256_castsi256_si128(x)), _mm256_cvtph_ps(_mm256_extracti128_si256(x, 1))}; }
inline Vec load_e5m2(const uint8_t* p) {
  return from_f16x16(_mm256_slli_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i*)p)), 8));
}
inline Vec load_e4m3(const uint8_t* p) {
  __m256i x = _mm256_slli_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)p)), 7);
  return from_f16x16(_mm256_and_si256(x, _mm256_set1_epi16(short(0xbfff))));
}
inline __m256 from_i4x8(__m256i x) {
  return _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_and_si256(x, _mm256_set1_epi32(15)), _mm256_set1_epi32(8)));
}
inline Vec load_i4(const uint8_t* p, int shift) {
  __m128i s = _mm_cvtsi32_si128(shift);
  return {from_i4x8(_mm256_srl_epi32(load_u8x8(p), s)), from_i4x8(_mm256_srl_epi32(load_u8x8(p + 8), s))};
}
inline Vec load_i4_pairs(const uint8_t* p) {
  __m128i x = _mm_loadl_epi64((const __m128i*)p);
  __m256i shift = _mm256_setr_epi32(0, 4, 0, 4, 0, 4, 0, 4);
  x = _mm_unpacklo_epi8(x, x);
  return {from_i4x8(_mm256_srlv_epi32(_mm256_cvtepu8_epi32(x), shift)),
          from_i4x8(_mm256_srlv_epi32(_mm256_cvtepu8_epi32(_mm_srli_si128(x, 8)), shift))};
}
inline __m256i bf16x8(__m256 a) {  // a NaN stays one
  __m256i u = _mm256_castps_si256(a), odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  __m256i up = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd);
  __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
  return _mm256_srli_epi32(_mm256_blendv_epi8(up, quiet, _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q))), 16);
}
inline void store_bf16(uint16_t* p, Vec v) {
  __m256i x = _mm256_packus_epi32(bf16x8(v.a), bf16x8(v.b));
  _mm256_storeu_si256((__m256i*)p, _mm256_permute4x64_epi64(x, 0xd8));
}
inline void store_f16(uint16_t* p, Vec v) {
  _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph(v.a, _MM_FROUND_TO_NEAREST_INT));
  _mm_storeu_si128((__m128i*)(p + 8), _mm256_cvtps_ph(v.b, _MM_FROUND_TO_NEAREST_INT));
}
inline Vec add(Vec x, Vec y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
inline Vec sub(Vec x, Vec y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
inline Vec mul(Vec x, Vec y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
inline Vec div(Vec x, Vec y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
inline Vec fma(Vec x, Vec y, Vec z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
inline Vec max(Vec x, Vec y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
inline Vec min(Vec x, Vec y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
inline Vec round(Vec x) {
  return {_mm256_round_ps(x.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), _mm256_round_ps(x.b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
inline Vec abs(Vec x) {
  __m256 m = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
  return {_mm256_and_ps(x.a, m), _mm256_and_ps(x.b, m)};
}
inline Vec select_lt(Vec x, Vec y, Vec yes, Vec no) {
  return {_mm256_blendv_ps(no.a, yes.a, _mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ)), _mm256_blendv_ps(no.b, yes.b, _mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ))};
}
inline __m256 exp2i8(__m256 n) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
inline Vec exp2i(Vec n) { return {exp2i8(n.a), exp2i8(n.b)}; }
inline float sum(Vec v) {
  __m256 h = _mm256_add_ps(v.a, v.b);
  __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  q = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}
inline float max_lane(Vec v) {
  __m256 h = _mm256_max_ps(v.a, v.b);
  __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  q = _mm_max_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}

#else

struct Vec { float v[kLanes]; };

template <class F>
inline Vec lanes(F f) {
  Vec r;
  for (int i = 0; i < kLanes; i++) r.v[i] = f(i);
  return r;
}
inline Vec zero() { return lanes([](int) { return 0.0f; }); }
inline Vec set1(float x) { return lanes([=](int) { return x; }); }
inline Vec load(const float* p) { return lanes([=](int i) { return p[i]; }); }
inline void store(float* p, Vec a) { for (int i = 0; i < kLanes; i++) p[i] = a.v[i]; }
inline Vec load_n(const float* p, int n) { return lanes([=](int i) { return i < n ? p[i] : 0.0f; }); }
inline void store_n(float* p, Vec a, int n) { for (int i = 0; i < n && i < kLanes; i++) p[i] = a.v[i]; }
inline Vec load_f16(const uint16_t* p) { return lanes([=](int i) { return mr::f32_from_f16(p[i]); }); }
inline Vec load_bf16(const uint16_t* p) { return lanes([=](int i) { return mr::f32_from_bf16(p[i]); }); }
inline Vec load_low4(const uint8_t* p) { return lanes([=](int i) { return float(p[i] & 15); }); }
inline Vec load_high4(const uint8_t* p) { return lanes([=](int i) { return float(p[i] >> 4); }); }
inline Vec load_e8m0_half(const uint8_t* p) {
  return lanes([=](int i) { return __builtin_bit_cast(float, p[i] < 2 ? 0x00200000u << p[i] : uint32_t(p[i] - 1) << 23); });
}
inline Vec load_i8(const uint8_t* p) { return lanes([=](int i) { return float(int8_t(p[i])); }); }
inline Vec load_e5m2(const uint8_t* p) { return lanes([=](int i) { return mr::f32_from_e5m2(p[i]); }); }
inline Vec load_e4m3(const uint8_t* p) { return lanes([=](int i) { return mr::f32_from_e4m3(p[i]) * 0x1p-8f; }); }
inline Vec load_i4(const uint8_t* p, int shift) { return lanes([=](int i) { return float((p[i] >> shift & 15) - 8); }); }
inline Vec load_i4_pairs(const uint8_t* p) { return lanes([=](int i) { return float((p[i / 2] >> i % 2 * 4 & 15) - 8); }); }
inline void store_f16(uint16_t* p, Vec a) { for (int i = 0; i < kLanes; i++) p[i] = mr::f16_from_f32(a.v[i]); }
inline void store_bf16(uint16_t* p, Vec a) { for (int i = 0; i < kLanes; i++) p[i] = mr::bf16_from_f32(a.v[i]); }
inline Vec add(Vec a, Vec b) { return lanes([&](int i) { return a.v[i] + b.v[i]; }); }
inline Vec sub(Vec a, Vec b) { return lanes([&](int i) { return a.v[i] - b.v[i]; }); }
inline Vec mul(Vec a, Vec b) { return lanes([&](int i) { return a.v[i] * b.v[i]; }); }
inline Vec div(Vec a, Vec b) { return lanes([&](int i) { return a.v[i] / b.v[i]; }); }
inline Vec fma(Vec a, Vec b, Vec c) { return lanes([&](int i) { return __builtin_fmaf(a.v[i], b.v[i], c.v[i]); }); }
inline Vec max(Vec a, Vec b) { return lanes([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; }); }  // as maxps: b if either is NaN
inline Vec min(Vec a, Vec b) { return lanes([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; }); }
inline Vec round(Vec a) { return lanes([&](int i) { return __builtin_rintf(a.v[i]); }); }
inline Vec abs(Vec a) { return lanes([&](int i) { return __builtin_fabsf(a.v[i]); }); }
inline Vec select_lt(Vec a, Vec b, Vec yes, Vec no) { return lanes([&](int i) { return a.v[i] < b.v[i] ? yes.v[i] : no.v[i]; }); }
inline Vec exp2i(Vec n) {
  return lanes([&](int i) { return __builtin_bit_cast(float, (int32_t(n.v[i]) + 127) << 23); });
}
inline float sum(Vec a) {
  for (int half = 8; half; half /= 2)
    for (int i = 0; i < half; i++) a.v[i] += a.v[i + half];
  return a.v[0];
}
inline float max_lane(Vec a) {
  for (int half = 8; half; half /= 2)
    for (int i = 0; i < half; i++) a.v[i] = a.v[i] > a.v[i + half] ? a.v[i] : a.v[i + half];
  return a.v[0];
}

#endif

// Keeps gcc from reordering a tile's products for AVX2's 16 registers, which makes it spill sums.
inline Vec in_register(Vec a) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  asm volatile("" : "+x"(a.a), "+x"(a.b));
#endif
  return a;
}

}  // namespace
