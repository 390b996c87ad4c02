// Attention of one new token over a long context, in every format of keys and values: the formats take turns, so that other load on the
// machine hits all of them alike. Prints bytes a token and layer, microseconds, and the speed relative to f16.
// Usage: kv_formats [tokens] [repeats]
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <vector>

#include "backend/backend.h"
#include "core/config.h"
#include "main.h"

namespace mr {
namespace {

struct Case {
  KvFormat format;
  PagedKv kv;
  Buffer memory;
  StateMemory state;
  std::vector<double> seconds{};
};

constexpr int kHeads = 32, kKvHeads = 8, kDim = 128, kPage = 32;

// A batch of `rows` rows of one sequence after `context` tokens, whose pages are 1, 2, 3, ...
struct OneSequence {
  std::vector<int32_t> position, row_begin, context, unit, begin;
  std::vector<Corner> corner{Corner::causal};
  GroupTable table[1];
  Batch batch{};
  OneSequence(int before, int rows, int n_pages) : row_begin{0, rows}, context{before}, begin{0, n_pages} {
    for (int i = 0; i < rows; i++) position.push_back(before + i);
    for (int i = 0; i < n_pages; i++) unit.push_back(i + 1);
    batch.n_tokens = rows;
    batch.n_seqs = 1;
    batch.position = position.data();
    batch.row_begin = row_begin.data();
    batch.context = context.data();
    batch.corner = corner.data();
    table[0].unit = unit.data();
    table[0].begin = begin.data();
    batch.group = table;
  }
};

int compare(int context, int repeats) {
  auto backend = make_cpu_backend(best_isa(), default_threads());
  const int n_pages = context / kPage + 1;
  std::vector<float> rows(size_t(context) * kKvHeads * kDim), q(size_t(kHeads) * kDim), out(q.size());
  uint32_t seed = 1;
  auto next = [&] { return float(int32_t(seed = seed * 1664525u + 1013904223u)) * 0x1p-31f; };
  for (float& x : rows) x = next();
  for (float& x : q) x = next();
  std::vector<Case> cases;
  for (const KvFormat& format : kv_formats()) {
    Case& c = cases.emplace_back(Case{format, {{0, 0}, format.element, kKvHeads, kDim, kDim}, {}, {}});
    const int64_t unit = c.kv.bytes_per_token() * kPage;
    c.memory = Buffer(size_t(unit * (n_pages + 1)));
    c.state.group.push_back({c.memory.as<std::byte>(), unit, n_pages + 1, kPage});
    const OneSequence all(0, context, n_pages);
    const Tensor x = view(rows.data(), DType::f32, {context, kKvHeads, kDim});
    backend->store_kv(c.kv, x, x, all.batch, c.state);
  }
  const OneSequence one(context - 1, 1, n_pages);
  const AttendArgs args{.heads = kHeads, .scale = 1 / std::sqrt(float(kDim))};
  for (int i = 0; i < repeats; i++)
    for (Case& c : cases) {
      const auto begin = std::chrono::steady_clock::now();
      backend->attend(view(out.data(), DType::f32, {1, kHeads, kDim}), view(q.data(), DType::f32, {1, kHeads, kDim}), c.kv, one.batch,
                      c.state, args);
      c.seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    }
  fmt::print("{}, {} threads, {} tokens, {} query and {} key/value heads of {}\n", name_of(best_isa()), default_threads(), context, kHeads,
             kKvHeads, kDim);
  auto median = [](std::vector<double> s) {
    std::ranges::sort(s);
    return s[s.size() / 2];
  };
  const double f16 = median(cases[1].seconds);
  for (const Case& c : cases) {
    const double s = median(c.seconds), bytes = double(c.kv.bytes_per_token());
    fmt::print("{:<9} {:5.0f} bytes a token {:8.0f} us  {:5.1f} GB/s  {:.2f} x f16\n", c.format.name, bytes, s * 1e6,
               bytes * context / s / 1e9, f16 / s);
  }
  return 0;
}

}  // namespace
}  // namespace mr

int main(int argc, char** argv) {
  return mr::guarded([](int n, char** word) { return mr::compare(n > 1 ? std::atoi(word[1]) : 32768, n > 2 ? std::atoi(word[2]) : 15); },
                     argc, argv);
}
