// The choice of tokens on the device against its definition in backend/sample.cpp. Skipped without a GPU.
#ifdef MR_CUDA
#include "backend/cuda/rows/rows.h"
#include "backend/on_device.h"
#include "backend/sample.h"

namespace mr::test {
namespace {

// Copies on the device that live as long as it does.
struct OnGpu {
  CudaBackend& gpu;
  std::vector<Buffer> held;
  template <class T>
  T* operator()(const std::vector<T>& host) {
    std::byte* at = held.emplace_back(gpu.allocate(std::max<size_t>(host.size() * sizeof(T), 16))).data();
    if (!host.empty()) gpu.copy_in(at, host.data(), host.size() * sizeof(T));
    return reinterpret_cast<T*>(at);
  }
};
template <class T>
std::vector<T> from_device(CudaBackend& gpu, const T* at, size_t n) {
  std::vector<T> host(n);
  gpu.copy_out(host.data(), at, n * sizeof(T));
  return host;
}

// `token` was drawn where the definition draws another: its share of the kept tokens' weight, which is summed here after sorting
// everything, must begin or end within 3e-5 of the draw.
void expect_at_the_edge(const std::vector<float>& logits, const SampleRow& row, int token, const std::string& where) {
  std::vector<std::pair<double, int>> all;  // -logit, id
  for (size_t i = 0; i < logits.size(); i++)
    if (logits[i] > -INFINITY) all.push_back({-logits[i], int(i)});
  std::sort(all.begin(), all.end());
  if (row.top_k > 0) all.resize(std::min(all.size(), size_t(row.top_k)));
  auto weight = [&](size_t i) { return std::exp((all[0].first - all[i].first) / row.temperature); };
  double total = 0, mass = 0, sum = 0, begin = -1, end = -1;
  for (size_t i = 0; i < all.size(); i++) total += weight(i);
  size_t n = 0;
  while (n < all.size() && (n == 0 || ((row.top_p == 1 || mass < row.top_p * total) && weight(n) >= row.min_p))) mass += weight(n++);
  for (size_t i = 0; i < std::min(all.size(), n + 1); i++) {
    if (all[i].second == token) begin = sum, end = sum + weight(i);
    sum += weight(i);
  }
  const double draw = uniform(row.seed, uint32_t(row.choice), uint32_t(row.position)) * mass;
  EXPECT_TRUE(begin >= 0 && begin - 3e-5 * total <= draw && draw <= end + 3e-5 * total)
      << where << ": token " << token << " takes " << begin << " to " << end << " of " << mass << ", the draw is " << draw;
}

// Rows that ask for everything at once against backend/sample.cpp, which sums in another order.
TEST(CudaSample, chooses_as_the_definition_does) {
  if (!cuda_available()) GTEST_SKIP() << "no GPU";
  OnDevice device(DType::f32);
  CudaBackend& gpu = device.gpu();
  const struct {
    float temperature;
    int top_k;
    float top_p, min_p;
  } filters[] = {{0, 0, 1, 0},
                 {1, 0, 1, 0},
                 {1, 5, 1, 0},
                 {1, 0, 0.9f, 0},
                 {1, 0, 1, 0.1f},
                 {0.7f, 40, 0.8f, 0.05f},
                 {2.5f, 0, 0.95f, 0},
                 {1, 1, 1, 0},
                 {1, 0, 1e-6f, 0},
                 {1.5f, 300, 0.3f, 0},
                 {1, 0, 0.9999f, 0.001f},
                 {0.01f, 0, 0.99f, 0},
                 {1, 1000000, 0.5f, 0},
                 {30, 0, 0.97f, 0.01f},
                 {1, 6000, 1, 0}};
  const LogitOps ops{[](const float* x, int64_t n) { return *std::max_element(x, x + n); },
                     [](const float* x, int64_t n, float max, float factor) {
                       double sum = 0;
                       for (int64_t i = 0; i < n; i++) sum += std::exp(double(x[i] - max) * factor);
                       return float(sum);
                     }};
  for (int vocab : {1, 3, 50, 1000, 32003, 128256})
    for (int kind = 0; kind < 4; kind++) {  // peaked, flat, many ties, all equal
      std::vector<SampleRow> rows;
      std::vector<LogitEdit> edits;
      std::vector<int32_t> mask_row;
      std::vector<uint32_t> mask;
      std::vector<float> logits;
      const int words = (vocab + 31) / 32;
      for (size_t f = 0; f < std::size(filters) * 2; f++) {
        const auto& how = filters[f / 2];
        SampleRow row{.seed = 17 + f, .choice = int(f % 3), .position = int(f * 7), .temperature = how.temperature, .top_k = how.top_k};
        row.top_p = how.top_p, row.min_p = how.min_p, row.repetition_penalty = 1.3f, row.frequency_penalty = 0.4f;
        row.presence_penalty = 0.2f, row.n_logprobs = f % 2 ? int(f % 21) : 0;
        row.edit_begin = int(edits.size());
        if (f % 2)
          for (int i = 0; i < std::min(vocab, 7); i++)
            edits.push_back({(i * 5 + int(f)) % vocab, i % 3, i % 2, float(i) * 0.25f}), row.n_edits++;
        if (vocab < 10) edits.resize(size_t(row.edit_begin)), row.n_edits = 0;  // the formula above repeats tokens there
        mask_row.push_back(f % 4 == 3 ? int(mask.size()) / words : -1);
        if (f % 4 == 3)
          for (int i = 0; i < words; i++) mask.push_back(f % 8 == 7 && vocab > 64 && i != 1 ? 0u : 0x5a5ac3ffu + uint32_t(i));
        rows.push_back(row);
        for (int i = 0; i < vocab; i++) {
          float v = value(f * 4 + uint64_t(kind), uint64_t(i));
          logits.push_back(kind == 0 ? 20 * v * v * v : kind == 1 ? v : kind == 2 ? std::round(4 * v) : -2.5f);
        }
      }
      const size_t n = rows.size();
      cuda::SampleCall call;
      OnGpu on_gpu{gpu, {}};
      call.logits = {on_gpu(logits), DType::f32, int64_t(n), vocab, vocab};
      call.out = on_gpu(std::vector<Out>(n, Out::token)), call.row = on_gpu(rows), call.edit = on_gpu(edits);
      call.unchanged = on_gpu(std::vector<float>(edits.size() + 1));
      call.mask_row = on_gpu(mask_row), call.mask = on_gpu(mask);
      call.choice = on_gpu(std::vector<cuda::Choice>(n, {-7, 7})), call.sampled = on_gpu(std::vector<int32_t>(n, -7));
      call.top = on_gpu(std::vector<TopToken>(n * cuda::kMostTop, {-7, 7}));
      gpu.synchronize();
      cuda::sample({}, call);
      cuda::must(cudaDeviceSynchronize());
      auto choice = from_device(gpu, call.choice, n);
      auto top = from_device(gpu, call.top, n * cuda::kMostTop);
      auto sampled = from_device(gpu, call.sampled, n);
      for (size_t r = 0; r < n; r++) {
        const std::string where = fmt::format("vocabulary {}, kind {}, row {}", vocab, kind, r);
        SampleScratch scratch;
        Sampled want;
        std::vector<float> x(logits.begin() + int64_t(r) * vocab, logits.begin() + int64_t(r + 1) * vocab), before = x;
        sample_row(x.data(), vocab, rows[r], edits.data(), mask_row[r] < 0 ? nullptr : mask.data() + mask_row[r] * words, ops, scratch,
                   want);
        EXPECT_EQ(choice[r].token, sampled[r]) << where;
        if (choice[r].token != want.token) {
          ASSERT_GT(rows[r].temperature, 0) << where << ": " << choice[r].token << ", not " << want.token;
          expect_at_the_edge(x, rows[r], choice[r].token, where);
          continue;
        }
        if (want.token >= 0) {
          EXPECT_NEAR(choice[r].logprob, want.logprob, 2e-4) << where;
        }
        for (size_t i = 0; i < want.top.size(); i++) {
          EXPECT_EQ(top[r * cuda::kMostTop + i].token, want.top[i].token) << where << " alternative " << i;
          EXPECT_NEAR(top[r * cuda::kMostTop + i].logprob, want.top[i].logprob, 2e-4) << where;
        }
      }
    }
}

}  // namespace
}  // namespace mr::test
#endif
