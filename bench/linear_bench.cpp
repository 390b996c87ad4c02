// Speed of cpu_linear beside what the machine can do: one row against the read bandwidth, many rows against the peak rate of
// the instruction used. Usage: linear_bench [threads] [isa] [format]
#include <immintrin.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <random>
#include <string>

#include "backend/cpu/linear.h"

using namespace mr;

// With one thread, the time that this thread ran: other programs on the machine then cost little.
static clockid_t g_clock = CLOCK_MONOTONIC;

static double now(clockid_t clock) {
  timespec t;
  clock_gettime(clock, &t);
  return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

// The best of many runs.
template <class F>
static double best_time(double budget_s, F f) {
  double best = 1e9, end = now(CLOCK_MONOTONIC) + budget_s;
  do {
    double begin = now(g_clock);
    f();
    best = std::min(best, now(g_clock) - begin);
  } while (now(CLOCK_MONOTONIC) < end);
  return best;
}

__attribute__((target("avx2"))) static int64_t sum_bytes(const std::byte* p, int64_t n) {
  __m256i a[4]{};
  for (int64_t i = 0; i + 128 <= n; i += 128)
    for (int j = 0; j < 4; j++) a[j] = _mm256_xor_si256(a[j], _mm256_loadu_si256((const __m256i*)(p + i + 32 * j)));
  return _mm256_extract_epi64(_mm256_xor_si256(_mm256_xor_si256(a[0], a[1]), _mm256_xor_si256(a[2], a[3])), 0);
}

// Operations a second of one thread: 12 independent chains, 2 operations per multiply-add of each lane.
#define MR_PEAK(name, isa, vec, init, op, lanes)                       \
  __attribute__((target(isa), noinline)) static void name##_rounds() { \
    vec a[12], x = init(1), y = init(2);                               \
    for (auto& v : a) v = init(0);                                     \
    for (int64_t i = 0; i < kRounds; i++) {                            \
      asm volatile("" : "+v"(x), "+v"(y));                             \
      for (int j = 0; j < 12; j++) a[j] = op;                          \
    }                                                                  \
    for (auto& v : a) asm volatile("" ::"v"(v));                       \
  }                                                                    \
  static double name() { return 2.0 * lanes * 12 * kRounds / best_time(0.2, name##_rounds); }
constexpr int64_t kRounds = 20000;
MR_PEAK(peak_fma_avx2, "avx2,fma", __m256, _mm256_set1_ps, _mm256_fmadd_ps(x, y, a[j]), 8)
MR_PEAK(peak_fma_avx512, "avx512f", __m512, _mm512_set1_ps, _mm512_fmadd_ps(x, y, a[j]), 16)
MR_PEAK(peak_madd_avx2, "avx2", __m256i, _mm256_set1_epi32, _mm256_add_epi32(a[j], _mm256_madd_epi16(a[j], y)), 16)
MR_PEAK(peak_madd_avx512, "avx512f,avx512bw", __m512i, _mm512_set1_epi32, _mm512_add_epi32(a[j], _mm512_madd_epi16(a[j], y)), 32)
MR_PEAK(peak_dpwssd, "avx512f,avx512vnni", __m512i, _mm512_set1_epi32, _mm512_dpwssd_epi32(a[j], x, y), 32)

static double peak(Isa isa, bool quantized) {
  switch (isa) {
    case Isa::avx2:
      return quantized ? peak_madd_avx2() : peak_fma_avx2();
    case Isa::avx512:
      return quantized ? peak_madd_avx512() : peak_fma_avx512();
    case Isa::vnni:
      return quantized ? peak_dpwssd() : peak_fma_avx512();
    default:
      return 0;
  }
}

static Weight random_weight(const FormatOps& ops, int64_t out, int64_t in, WeightStore& store, ThreadPool& pool) {
  std::mt19937 rng(1);
  std::normal_distribution<float> dist;
  std::vector<float> row(static_cast<size_t>(in));
  for (float& x : row) x = dist(rng);
  std::vector<std::byte> stored(size_t(in / ops.format.group * ops.format.block_bytes));
  ops.encode_row(row.data(), in, stored.data());
  std::vector<const std::byte*> rows(size_t(out), stored.data());
  return pack(ops, rows, in, store, pool);
}

int main(int argc, char** argv) {
  int threads = argc > 1 ? atoi(argv[1]) : 2;
  if (threads == 1) g_clock = CLOCK_THREAD_CPUTIME_ID;
  ThreadPool pool(threads);
  Buffer big(512 << 20);
  std::fill_n(big.data(), big.size(), std::byte(1));
  double read_s = 1e9;
  for (int i = 0; i < 6; i++)
    read_s = std::min(read_s, best_time(0, [&] {
                        pool.parallel(int64_t(big.size()), 1 << 16, [&](int64_t b, int64_t e, int) {
                          int64_t s = sum_bytes(big.data() + b, e - b);
                          asm volatile("" ::"r"(s));
                        });
                      }));
  double bandwidth = double(big.size()) / read_s;
  std::printf("%d threads, read bandwidth %.1f GB/s\n", threads, bandwidth * 1e-9);

  for (Isa isa : available_isas()) {
    if (argc > 2 ? name_of(isa) != argv[2] : isa == Isa::scalar) continue;
    for (const FormatOps* ops : formats()) {
      if (argc > 3 && ops->format.name != argv[3]) continue;
      double limit = peak(isa, ops->format.group > 1) * threads;
      std::printf("%-7s %-5s peak %4.0f GFLOP/s:", name_of(isa).data(), ops->format.name.data(), limit * 1e-9);
      WeightStore store;
      LinearScratch scratch;
      // One row: a matrix far larger than the caches. Many rows: shapes of a small model's layers.
      struct {
        int64_t rows, out, in;
      } cases[] = {{1, 1 << 17, 576}, {1, 1 << 16, 1536}, {512, 3072, 576}, {512, 576, 1536}, {8, 3072, 576}};
      for (auto [rows, out, in] : cases) {
        Weight w = random_weight(*ops, out, in, store, pool);
        std::vector<float> x(size_t(rows * in), 0.5f), y(size_t(rows * out));
        double t = best_time(0.3, [&] {
          cpu_linear(view(y.data(), DType::f32, {rows, out}), view(x.data(), DType::f32, {rows, in}), w, {}, pool, linear_kernels(isa),
                     scratch);
        });
        double rate = 2.0 * double(rows * out * in) / t;
        if (rows == 1)
          std::printf("  %5.1f GB/s (%3.0f%%)", double(w.bytes()) / t * 1e-9, 100 * double(w.bytes()) / t / bandwidth);
        else
          std::printf("  %ld rows %5.1f GFLOP/s (%3.0f%%)", long(rows), rate * 1e-9, 100 * rate / limit);
      }
      std::printf("\n");
    }
  }
}
