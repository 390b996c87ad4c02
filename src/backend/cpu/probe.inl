// The loops of probe.h for one instruction set.
#include "backend/cpu/probe_kernels.h"
#include "backend/cpu/vec.h"
#if defined(__AMX_BF16__)
#include "backend/cpu/tiles.h"
#endif

namespace {
namespace probe {

float read(const float* p, int64_t n) {
  Vec m[8];
  for (Vec& v : m) v = zero();
  int64_t i = 0;
  for (; i + 8 * kLanes <= n; i += 8 * kLanes)
    for (int j = 0; j < 8; j++) m[j] = max(m[j], load(p + i + j * kLanes));
  for (int j = 1; j < 8; j++) m[0] = max(m[0], m[j]);
  return max_lane(m[0]);
}

constexpr int kChains = 12;  // latency 4 or 5 times 2 a cycle

double fma_rounds(int64_t rounds, float* sink) {
#if defined(__AVX512F__) || !defined(__AVX2__)
  Vec acc[kChains];
  for (Vec& a : acc) a = set1(*sink);
  Vec x = set1(0.999f), y = set1(1e-3f);
  for (int64_t r = 0; r < rounds; r++)
    for (Vec& a : acc) a = fma(a, x, y);
  for (Vec& a : acc) *sink += sum(a);
  return double(rounds) * kChains * kLanes;
#else  // half a Vec: two halves of 12 chains do not fit into 16 registers
  __m256 acc[kChains], x = _mm256_set1_ps(0.999f), y = _mm256_set1_ps(1e-3f);
  for (__m256& a : acc) a = _mm256_set1_ps(*sink);
  for (int64_t r = 0; r < rounds; r++)
    for (__m256& a : acc) a = _mm256_fmadd_ps(a, x, y);
  for (__m256& a : acc) *sink += _mm256_cvtss_f32(a);
  return double(rounds) * kChains * 8;
#endif
}

double dot_rounds(int64_t rounds, float* sink) {
#if defined(__AMX_BF16__)
  TileShapes shapes;
  for (int i = 0; i < 8; i++) shapes.row_bytes[i] = 64, shapes.rows[i] = 16;
  Tiles::configure(shapes);
  for (int64_t r = 0; r < rounds; r += 16) Tiles::dot<0, 4, 6>(), Tiles::dot<1, 4, 7>(), Tiles::dot<2, 5, 6>(), Tiles::dot<3, 5, 7>();
  Tiles::release();
  *sink += 1;
  return double((rounds + 15) / 16) * 4 * 16 * 16 * 32 / 2;  // an activation is two pieces
#elif defined(__AVX512VNNI__)
  __m512i acc[kChains], x = _mm512_set1_epi16(int16_t(*sink)), y = _mm512_set1_epi16(3);
  for (__m512i& a : acc) a = _mm512_setzero_si512();
  for (int64_t r = 0; r < rounds; r++)
    for (__m512i& a : acc) a = _mm512_dpwssd_epi32(a, x, y);
  for (__m512i& a : acc) *sink += float(_mm512_reduce_add_epi32(a));
  return double(rounds) * kChains * 32;
#elif defined(__AVX512BW__)
  __m512i acc[kChains], x = _mm512_set1_epi16(int16_t(*sink)), y = _mm512_set1_epi16(3);
  for (__m512i& a : acc) a = _mm512_setzero_si512();
  for (int64_t r = 0; r < rounds; r++)
    for (__m512i& a : acc) {
      asm volatile("" : "+v"(x));  // as if x had changed: the product is not to be taken out of the loop
      a = _mm512_add_epi32(a, _mm512_madd_epi16(x, y));
    }
  for (__m512i& a : acc) *sink += float(_mm512_reduce_add_epi32(a));
  return double(rounds) * kChains * 32;
#elif defined(__AVX2__)
  constexpr int kSums = 8;  // only the sums are chains, and adding takes one cycle
  __m256i acc[kSums], x = _mm256_set1_epi16(int16_t(*sink)), y = _mm256_set1_epi16(3);
  for (__m256i& a : acc) a = _mm256_setzero_si256();
  for (int64_t r = 0; r < rounds; r++)
    for (__m256i& a : acc) {
      asm volatile("" : "+x"(x));  // as if x had changed: the product is not to be taken out of the loop
      a = _mm256_add_epi32(a, _mm256_madd_epi16(x, y));
    }
  for (__m256i& a : acc) *sink += float(_mm256_extract_epi32(a, 0));
  return double(rounds) * kSums * 16;
#else
  return fma_rounds(rounds, sink);
#endif
}

constexpr mr::ProbeKernels kKernels{read, fma_rounds, dot_rounds};

}  // namespace probe
}  // namespace
