// Speed of cpu_linear beside what the machine can do: one row against the read bandwidth, many rows against the peak rate of
// the instruction used. Usage: linear_bench [threads] [isa] [format]
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <random>
#include <string>

#include "backend/cpu/linear.h"
#include "backend/cpu/probe.h"

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

static Weight random_weight(const Codec& codec, int64_t out, int64_t in, WeightStore& store, ThreadPool& pool) {
  std::mt19937 rng(1);
  std::vector<std::byte> row(size_t(codec.row_bytes(in)));
  if (codec.encode) {
    std::normal_distribution<float> dist;
    std::vector<float> values(static_cast<size_t>(in));
    for (float& x : values) x = dist(rng);
    codec.encode(values.data(), in, row.data());
  } else {
    for (std::byte& b : row) b = std::byte(rng() % 60);  // scales stay finite
  }
  StoredWeight stored(codec, in);
  stored.add(row.data(), out, std::vector<int64_t>(size_t(out)));
  return pack(stored, store, pool);
}

int main(int argc, char** argv) {
  int threads = argc > 1 ? atoi(argv[1]) : 2;
  if (threads == 1) g_clock = CLOCK_THREAD_CPUTIME_ID;
  ThreadPool pool(threads);
  Buffer big(512 << 20);
  std::fill_n(big.data(), big.size(), std::byte(1));
  const std::span<const std::byte> all(big.data(), big.size());
  double bandwidth = read_bandwidth(std::span(&all, 1), best_isa(), pool);
  std::printf("%d threads, read bandwidth %.1f GB/s\n", threads, bandwidth * 1e-9);

  for (Isa isa : available_isas()) {
    if (argc > 2 ? name_of(isa) != argv[2] : isa == Isa::scalar) continue;
    for (const Codec* codec : codecs()) {
      if (argc > 3 && codec->name != argv[3]) continue;
      auto rate_of = [&] { return codec->block > 1 ? quantized_rate(isa, pool) : float_rate(isa, pool); };
      double limit = rate_of();
      std::printf("%-7s %-5s peak %4.0f GFLOP/s:", name_of(isa).data(), codec->name.data(), limit * 1e-9);
      WeightStore store;
      LinearScratch scratch;
      // One row: a matrix far larger than the caches. Many rows: shapes of a small model's layers.
      struct {
        int64_t rows, out, in;
      } cases[] = {{1, 1 << 17, 576}, {1, 1 << 16, 1536}, {512, 3072, 576}, {512, 576, 1536}, {8, 3072, 576}};
      for (auto [rows, out, wanted] : cases) {
        const int64_t in = (wanted + codec->block - 1) / codec->block * codec->block;
        Weight w = random_weight(*codec, out, in, store, pool);
        std::vector<float> x(size_t(rows * in), 0.5f), y(size_t(rows * out));
        double t = best_time(0.3, [&] {
          cpu_linear(view(y.data(), DType::f32, {rows, out}), view(x.data(), DType::f32, {rows, in}), w, {}, pool, linear_kernels(isa),
                     scratch);
        });
        // What the machine allows wanders while others use it: the best that was seen beside the measurements counts.
        limit = std::max(limit, rate_of());
        bandwidth = std::max(bandwidth, read_bandwidth(std::span(&all, 1), best_isa(), pool, 0.1));
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
