#include "backend/cpu/probe.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "backend/cpu/probe_kernels.h"
#include "core/tensor.h"

namespace mr {

static double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

static const ProbeKernels& probe_kernels(Isa isa) {
  switch (isa) {
    case Isa::scalar:
      return probe_kernels_scalar();
    case Isa::avx2:
      return probe_kernels_avx2();
    case Isa::avx512:
      return probe_kernels_avx512();
    case Isa::vnni:
      return probe_kernels_vnni();
    case Isa::amx:
      return probe_kernels_amx();
  }
  return probe_kernels_scalar();
}

double read_bandwidth(std::span<const std::span<const std::byte>> memory, Isa isa, ThreadPool& pool, double budget_s) {
  const ProbeKernels& kernels = probe_kernels(isa);
  constexpr int64_t kPiece = 1 << 16;  // floats: pieces as large as a linear layer's
  struct Piece {
    const float* p;
    int64_t n;
  };
  std::vector<Piece> pieces;
  double bytes = 0;
  for (std::span<const std::byte> part : memory)
    for (int64_t i = 0, n = int64_t(part.size() / 4); i < n; i += kPiece) {
      pieces.push_back({reinterpret_cast<const float*>(part.data()) + i, std::min(kPiece, n - i)});
      bytes += double(pieces.back().n) * 4;
    }
  std::vector<float> sink(size_t(pool.size()) * 16);
  std::vector<double> times;
  for (double end = seconds() + budget_s; times.size() < 5 || (seconds() < end && times.size() < 1000);) {
    double begin = seconds();
    pool.parallel(int64_t(pieces.size()), 1, [&](int64_t i, int64_t, int worker) {
      sink[size_t(worker) * 16] += kernels.read(pieces[size_t(i)].p, pieces[size_t(i)].n);
    });
    times.push_back(seconds() - begin);
  }
  // The median: the best of a few hundred passes is one whose data happened to be cached.
  std::ranges::nth_element(times, times.begin() + int64_t(times.size() / 2));
  return bytes / times[times.size() / 2];
}

static double rate(double (*product)(int64_t, float*), ThreadPool& pool) {
  constexpr int64_t kRounds = 16;
  Buffer memory(size_t(pool.size()) * ProbeKernels::kFloats * sizeof(float));
  std::fill_n(memory.as<float>(), int64_t(pool.size()) * ProbeKernels::kFloats, 1.0f);
  double best = 0;
  for (int pass = 0; pass < 8; pass++) {
    std::vector<double> done(size_t(pool.size()) * 8);  // by worker, a cache line each
    double begin = seconds(), total = 0;
    pool.parallel(pool.size() * 4, 1, [&](int64_t, int64_t, int worker) {
      done[size_t(worker) * 8] += product(kRounds, memory.as<float>() + worker * ProbeKernels::kFloats);
    });
    for (int i = 0; i < pool.size(); i++) total += done[size_t(i) * 8];
    best = std::max(best, 2 * total / (seconds() - begin));
  }
  return best;
}

double float_rate(Isa isa, ThreadPool& pool) { return rate(probe_kernels(isa).floats, pool); }
double quantized_rate(Isa isa, ThreadPool& pool) { return rate(probe_kernels(isa).pairs, pool); }

}  // namespace mr
