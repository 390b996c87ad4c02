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
    if (all[i].second == token) {
      begin = sum;
      end = sum + weight(i);
    }
    sum += weight(i);
  }
  const double draw = uniform(row.seed, uint32_t(row.choice), uint32_t(row.position)) * mass;
  EXPECT_TRUE(begin >= 0 && begin - 3e-5 * total <= draw && draw <= end + 3e-5 * total)
      << where << ": token " << token << " takes " << begin << " to " << end << " of " << mass << ", the draw is " << draw;
}

struct Filter {
  float temperature;
  int top_k;
  float top_p, min_p;
};
constexpr Filter filters[] = {
    {0, 0, 1, 0},          {1, 0, 1, 0},          {1, 5, 1, 0},     {1, 0, 0.9f, 0},      {1, 0, 1, 0.1f},         {0.7f, 40, 0.8f, 0.05f},
    {2.5f, 0, 0.95f, 0},   {1, 1, 1, 0},          {1, 0, 1e-6f, 0}, {1.5f, 300, 0.3f, 0}, {1, 0, 0.9999f, 0.001f}, {0.01f, 0, 0.99f, 0},
    {1, 1000000, 0.5f, 0}, {30, 0, 0.97f, 0.01f}, {1, 6000, 1, 0}};

enum class Logits { peaked, flat, many_ties, all_equal };

// Rows that use everything: every filter twice, the second time with edits and alternatives, some with masks.
struct Wishes {
  int vocab, words;
  std::vector<SampleRow> rows;
  std::vector<LogitEdit> edits;
  std::vector<int32_t> mask_row;
  std::vector<uint32_t> mask;
  std::vector<float> logits;

  Wishes(int vocab, Logits kind) : vocab(vocab), words((vocab + 31) / 32) {
    for (size_t f = 0; f < std::size(filters) * 2; f++) {
      add_row(filters[f / 2], f);
      add_mask(f);
      for (int i = 0; i < vocab; i++) logits.push_back(logit(kind, value(f * 4 + uint64_t(kind), uint64_t(i))));
    }
  }

  const uint32_t* mask_of(size_t row) const { return mask_row[row] < 0 ? nullptr : mask.data() + mask_row[row] * words; }

 private:
  static float logit(Logits kind, float v) {
    switch (kind) {
      case Logits::peaked:
        return 20 * v * v * v;
      case Logits::flat:
        return v;
      case Logits::many_ties:
        return std::round(4 * v);
      default:
        return -2.5f;
    }
  }
  void add_row(const Filter& how, size_t f) {
    SampleRow row{.seed = 17 + f, .choice = int(f % 3), .position = int(f * 7), .temperature = how.temperature, .top_k = how.top_k};
    row.top_p = how.top_p;
    row.min_p = how.min_p;
    row.repetition_penalty = 1.3f;
    row.frequency_penalty = 0.4f;
    row.presence_penalty = 0.2f;
    row.n_logprobs = f % 2 ? int(f % 21) : 0;
    row.edit_begin = int(edits.size());
    row.n_edits = f % 2 && vocab >= 10 ? 7 : 0;  // of fewer tokens the formula would repeat some
    for (int i = 0; i < row.n_edits; i++) edits.push_back({(i * 5 + int(f)) % vocab, i % 3, i % 2, float(i) * 0.25f});
    rows.push_back(row);
  }
  void add_mask(size_t f) {
    mask_row.push_back(f % 4 == 3 ? int(mask.size()) / words : -1);
    if (f % 4 != 3) return;
    for (int i = 0; i < words; i++) mask.push_back(f % 8 == 7 && vocab > 64 && i != 1 ? 0u : 0x5a5ac3ffu + uint32_t(i));
  }
};

struct Chosen {
  std::vector<cuda::Choice> choice;
  std::vector<TopToken> top;
  std::vector<int32_t> sampled;
};

Chosen choose(CudaBackend& gpu, const Wishes& w) {
  const size_t n = w.rows.size();
  cuda::SampleCall call;
  OnGpu on_gpu{gpu, {}};
  call.logits = {on_gpu(w.logits), DType::f32, int64_t(n), w.vocab, w.vocab};
  call.out = on_gpu(std::vector<Out>(n, Out::token));
  call.row = on_gpu(w.rows);
  call.edit = on_gpu(w.edits);
  call.unchanged = on_gpu(std::vector<float>(w.edits.size() + 1));
  call.mask_row = on_gpu(w.mask_row);
  call.mask = on_gpu(w.mask);
  call.choice = on_gpu(std::vector<cuda::Choice>(n, {-7, 7}));
  call.sampled = on_gpu(std::vector<int32_t>(n, -7));
  call.top = on_gpu(std::vector<TopToken>(n * cuda::kMostTop, {-7, 7}));
  gpu.synchronize();
  cuda::sample({}, call);
  cuda::must(cudaDeviceSynchronize());
  return {from_device(gpu, call.choice, n), from_device(gpu, call.top, n * cuda::kMostTop), from_device(gpu, call.sampled, n)};
}

void expect_as_defined(const Wishes& w, const Chosen& got, size_t r, const std::string& where) {
  const LogitOps ops{[](const float* x, int64_t n) { return *std::max_element(x, x + n); },
                     [](const float* x, int64_t n, float max, float factor) {
                       double sum = 0;
                       for (int64_t i = 0; i < n; i++) sum += std::exp(double(x[i] - max) * factor);
                       return float(sum);
                     }};
  SampleScratch scratch;
  Sampled want;
  std::vector<float> x(w.logits.begin() + int64_t(r) * w.vocab, w.logits.begin() + int64_t(r + 1) * w.vocab);
  sample_row(x.data(), w.vocab, w.rows[r], w.edits.data(), w.mask_of(r), ops, scratch, want);
  const cuda::Choice& choice = got.choice[r];
  EXPECT_EQ(choice.token, got.sampled[r]) << where;
  if (choice.token != want.token) {
    ASSERT_GT(w.rows[r].temperature, 0) << where << ": " << choice.token << ", not " << want.token;
    return expect_at_the_edge(x, w.rows[r], choice.token, where);
  }
  if (want.token >= 0) {
    EXPECT_NEAR(choice.logprob, want.logprob, 2e-4) << where;
  }
  for (size_t i = 0; i < want.top.size(); i++) {
    EXPECT_EQ(got.top[r * cuda::kMostTop + i].token, want.top[i].token) << where << " alternative " << i;
    EXPECT_NEAR(got.top[r * cuda::kMostTop + i].logprob, want.top[i].logprob, 2e-4) << where;
  }
}

// Against backend/sample.cpp, which sums in another order.
TEST(CudaSample, chooses_as_the_definition_does) {
  if (!cuda_available()) GTEST_SKIP() << "no GPU";
  OnDevice device(DType::f32);
  for (int vocab : {1, 3, 50, 1000, 32003, 128256})
    for (Logits kind : {Logits::peaked, Logits::flat, Logits::many_ties, Logits::all_equal}) {
      const Wishes wishes(vocab, kind);
      const Chosen got = choose(device.gpu(), wishes);
      for (size_t r = 0; r < wishes.rows.size(); r++)
        expect_as_defined(wishes, got, r, fmt::format("vocabulary {}, kind {}, row {}", vocab, int(kind), r));
    }
}

}  // namespace
}  // namespace mr::test
#endif
