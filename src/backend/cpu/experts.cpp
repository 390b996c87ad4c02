#include "backend/cpu/experts.h"

#include <algorithm>
#include <limits>

namespace mr {

void route_row(int32_t* expert, float* weight, int64_t k, float* logits, int64_t n, bool renormalize, const OpKernels& ops) {
  const float max = ops.max_of(logits, n);
  float total = renormalize ? 0 : ops.sum_exp(logits, n, max, 1);
  for (int64_t j = 0; j < k; j++) {
    int64_t best = 0;
    for (int64_t e = 1; e < n; e++)
      if (logits[e] > logits[best]) best = e;
    expert[j] = int32_t(best);
    weight[j] = logits[best] - max;
    logits[best] = -std::numeric_limits<float>::infinity();
  }
  ops.exp(weight, k);
  if (renormalize)
    for (int64_t j = 0; j < k; j++) total += weight[j];
  for (int64_t j = 0; j < k; j++) weight[j] /= total;
}

// Sorts the pairs (row, choice) by expert, keeping their order within each.
static void sort_by_expert(const int32_t* expert, int64_t pairs, size_t experts, ExpertScratch& s) {
  s.begin.assign(experts + 1, 0);
  s.order.resize(size_t(pairs));
  for (int64_t p = 0; p < pairs; p++) s.begin[size_t(expert[p]) + 1]++;
  for (size_t e = 0; e < experts; e++) s.begin[e + 1] += s.begin[e];
  for (int64_t p = 0; p < pairs; p++) s.order[size_t(s.begin[size_t(expert[p])]++)] = p;  // begin[e] is now the end of e's pairs
  for (size_t e = experts; e > 0; e--) s.begin[e] = s.begin[e - 1];
  s.begin[0] = 0;
}

int64_t ExpertScratch::needs(int64_t pairs, std::span<const Weight> experts) {
  const int64_t lists = (int64_t(experts.size()) + 1 + 2 * pairs) * int64_t(sizeof(int64_t));  // `order` grows by doubling
  const int64_t widest = std::max(experts[0].in, experts[0].out);  // up and down products share x and y, so each holds the wider rows
  return lists + 2 * pairs * widest * int64_t(sizeof(float));
}

static Tensor matrix(Buffer& buffer, int64_t rows, int64_t columns) {
  size_t bytes = size_t(rows * columns) * sizeof(float);
  if (buffer.size() < bytes) buffer = Buffer(bytes);
  return view(buffer.data(), DType::f32, {rows, columns});
}

void cpu_grouped_linear(Tensor out, Tensor x, std::span<const Weight> experts, Tensor expert, ThreadPool& pool,
                        const LinearKernels& kernels, LinearScratch& linear_scratch, ExpertScratch& s) {
  const int64_t pairs = out.shape[0];
  if (pairs == 0) return;
  const int64_t share = pairs / x.shape[0];  // pairs that read one row of x
  sort_by_expert(expert.as<int32_t>(), pairs, experts.size(), s);
  Tensor in = matrix(s.x, pairs, x.shape[1]), result = matrix(s.y, pairs, out.shape[1]);
  const int64_t grain = std::max<int64_t>(1, (32 << 10) / std::max(x.shape[1], out.shape[1]));
  pool.parallel(pairs, grain, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; i++) std::copy_n(x.row<float>(s.order[size_t(i)] / share), x.shape[1], in.row<float>(i));
  });
  for (size_t e = 0; e < experts.size(); e++) {
    const int64_t begin = s.begin[e], n = s.begin[e + 1] - begin;
    if (n) cpu_linear(result.rows(begin, n), in.rows(begin, n), experts[e], {}, pool, kernels, linear_scratch);
  }
  pool.parallel(pairs, grain, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; i++) std::copy_n(result.row<float>(i), out.shape[1], out.row<float>(s.order[size_t(i)]));
  });
}

}  // namespace mr
