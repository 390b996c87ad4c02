// Layers of a transformer for one token of one or some sequences, which the CUDA backend runs as one kernel, against ref. What flows
// between operations is rounded to bf16 there, and the error of a result is taken as a whole. Skipped without a GPU.
#ifdef MR_CUDA
#include "backend/cuda/cuda_backend.h"
#include "backend/world.h"
#include "core/arena.h"

namespace mr::test {
namespace {

struct Block {
  int dim, heads, kv_heads, head_dim, hidden;
  bool bias = false, norm_weights = true;
  int window = 0, layers = 3;
  int qkv() const { return (heads + 2 * kv_heads) * head_dim; }
};

constexpr int kPage = 32;

// A model of such blocks whose steps of several rows may be one kernel; a window, so that no prefix is shared.
ModelFacts facts(const Block& s) {
  return {.attention = {{s.heads, s.kv_heads, s.head_dim, /*window=*/1}}, .n_layers = 1, .parameters = 1 << 30, .plain_blocks = true};
}

// The same layers on any backend for the next tokens of n sequences; all layers use the same pages.
class Net {
 public:
  Net(Backend& b, const Block& s, int most_tokens, int n = 1)
      : b_(b),
        s_(s),
        n_(n),
        store_(WeightStore::Mode::holds, [&b](size_t bytes) { return b.allocate(bytes); }),
        arena_(b.allocate(size_t(n) * (size_t(s.hidden) * 8 + size_t(s.dim) * 8) + 4096)),
        kv_{{0, 0}, b.kv_dtype(), s.kv_heads, s.head_dim, s.head_dim} {
    kv_.dtype = DType::bf16;
    auto weight = [&](int64_t out, int64_t in, uint64_t name) {
      std::vector<float> values = made(name, out * in, std::sqrt(3.0f / float(in)));
      std::vector<const std::byte*> rows;
      for (int64_t r = 0; r < out; r++) rows.push_back(reinterpret_cast<const std::byte*>(values.data() + r * in));
      return b.place(format_ops("f32"), rows, in, store_);
    };
    qkv_w_ = weight(s.qkv(), s.dim, 11), out_w_ = weight(s.dim, s.heads * s.head_dim, 12), gate_up_w_ = weight(2 * s.hidden, s.dim, 13),
    down_w_ = weight(s.dim, s.hidden, 14);
    if (s.bias) qkv_bias_ = put(made(15, s.qkv()), DType::f32), out_bias_ = put(made(16, s.dim), DType::f32);
    if (s.norm_weights) first_norm_.weight = put(made(17, s.dim), DType::f32), second_norm_.weight = put(made(18, s.dim), DType::f32);
    first_norm_.eps = second_norm_.eps = 1e-5f;
    second_norm_.offset = s.norm_weights ? 1.0f : 0.0f;
    const DType act = b.activations();
    residual_ = put(made(19, n * s.dim, 3), DType::f32, n), qkv_ = put(made(20, n * s.qkv()), act, n);
    mixed_ = put(made(20, n * s.heads * s.head_dim), act, n), hidden_ = put(made(20, n * s.hidden), act, n);
    angles_ = put(made(20, n * s.head_dim), DType::f32, n);
    rope_.dim = s.head_dim;
    for (int i = 0; i < s.head_dim / 2; i++) rope_.inv_freq.push_back(std::pow(10000.0f, -2.0f * float(i) / float(s.head_dim)));
    per_ = (most_tokens + kPage - 1) / kPage;
    const int pages = n * per_;
    state_.group.push_back({nullptr, kv_.bytes_per_token() * kPage, pages + 1, kPage});
    for (int i = 0; i < pages; i++) units_.push_back(1 + (i * 101 + 3) % pages);
    EXPECT_NE(pages % 101, 0) << "a page would be used twice";
    pages_ = b.allocate(size_t(state_.group[0].unit_bytes * (pages + 1)));
    state_.group[0].base = pages_.data();
    std::vector<std::byte> unset(pages_.size(), std::byte(0xff));
    b.copy_in(pages_.data(), unset.data(), unset.size());
    const int64_t stored = int64_t(most_tokens - 1) * s.kv_heads * s.head_dim;
    if (stored == 0) return;
    for (int i = 0; i < n; i++) {
      Tensor k = put(made(uint64_t(21 + 2 * i), stored), act), v = put(made(uint64_t(22 + 2 * i), stored), act);
      k.rank = v.rank = 3, k.shape = v.shape = {most_tokens - 1, s.kv_heads, s.head_dim};
      k.stride = v.stride = {s.kv_heads * s.head_dim, s.head_dim, 1};
      Rows rows;
      rows.add(0, most_tokens - 1);
      rows.unit.assign(units_.begin() + i * per_, units_.begin() + (i + 1) * per_), rows.unit_begin = {0, per_};
      Batch batch = b.upload(rows.batch(), state_);
      b.store_kv(kv_, k, v, batch, state_);
      b.synchronize();
      kept_.pop_back(), kept_.pop_back();
    }
  }

  // The residual stream, and the last layer's attention, of tokens behind so many others.
  std::pair<std::vector<float>, std::vector<float>> step(const std::vector<int>& contexts) {
    const std::vector<float> begin = made(19, n_ * s_.dim, 3);
    b_.copy_in(residual_.data, begin.data(), begin.size() * 4);
    Rows rows;
    for (int i = 0; i < n_; i++) rows.add(contexts[size_t(i)], 1), rows.unit_begin.push_back((i + 1) * per_);
    rows.unit = units_;
    Batch batch = b_.upload(rows.batch(), state_);
    b_.replay(1, [&] { return forward(batch); });
    b_.synchronize();
    return {get(residual_), get(mixed_)};
  }

 private:
  Tensor forward(const Batch& batch) {
    b_.angles(angles_, rope_, batch);
    for (int i = 0; i < s_.layers; i++) {
      b_.linear_normed(qkv_, residual_, first_norm_, qkv_w_, {.bias = qkv_bias_}, arena_);
      b_.attend_new(heads(mixed_, 0, s_.heads), heads(qkv_, 0, s_.heads), heads(qkv_, s_.heads, s_.kv_heads),
                    heads(qkv_, s_.heads + s_.kv_heads, s_.kv_heads), angles_, false, kv_, batch, state_,
                    {.heads = s_.heads, .scale = 1 / std::sqrt(float(s_.head_dim)), .window = s_.window});
      b_.linear(residual_, mixed_, out_w_, {.bias = out_bias_, .residual = residual_, .scale = 0.5f, .next = &second_norm_});
      b_.linear_gate_normed(hidden_, residual_, second_norm_, gate_up_w_, Activation::silu, arena_);
      b_.linear(residual_, hidden_, down_w_, {.residual = residual_, .next = i + 1 < s_.layers ? &first_norm_ : nullptr});
    }
    return residual_;
  }
  static std::vector<float> made(uint64_t name, int64_t n, float scale = 1) {
    std::vector<float> values(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; i++) values[size_t(i)] = f32_from_bf16(bf16_from_f32(scale * value(name, uint64_t(i))));
    return values;
  }
  Tensor put(const std::vector<float>& values, DType type, int rows = 1) {
    const int64_t n = int64_t(values.size());
    Tensor t = view(kept_.emplace_back(b_.allocate(size_t(n * size_of(type)))).data(), type, {rows, n / rows});
    std::vector<uint16_t> half;
    for (float x : values) half.push_back(bf16_from_f32(x));
    b_.copy_in(t.data, type == DType::f32 ? static_cast<const void*>(values.data()) : half.data(), size_t(n * size_of(type)));
    return t;
  }
  std::vector<float> get(Tensor t) {
    std::vector<float> values(size_t(t.size()));
    if (t.dtype == DType::f32) {
      b_.copy_out(values.data(), t.data, values.size() * 4);
    } else {
      std::vector<uint16_t> half(values.size());
      b_.copy_out(half.data(), t.data, half.size() * 2);
      for (size_t i = 0; i < half.size(); i++) values[i] = f32_from_bf16(half[i]);
    }
    return values;
  }
  Tensor heads(Tensor x, int64_t first, int64_t n) const {
    Tensor t = x.cols(first * s_.head_dim, n * s_.head_dim);
    t.rank = 3, t.shape = {n_, n, s_.head_dim}, t.stride = {x.stride[0], s_.head_dim, 1};
    return t;
  }

  Backend& b_;
  Block s_;
  int n_, per_ = 0;  // sequences, pages of each
  WeightStore store_;
  Arena arena_;
  PagedKv kv_;
  StateMemory state_;
  Buffer pages_;
  std::vector<int32_t> units_;
  std::vector<Buffer> kept_;
  Weight qkv_w_, out_w_, gate_up_w_, down_w_;
  Tensor qkv_bias_, out_bias_, residual_, qkv_, mixed_, hidden_, angles_;
  Norm first_norm_, second_norm_;
  RopeTable rope_;
};

double apart(const std::vector<float>& got, const std::vector<float>& want) {  // NaN stays NaN
  double error = 0, size = 0;
  for (size_t i = 0; i < want.size(); i++) error += std::pow(double(got[i]) - want[i], 2), size += std::pow(double(want[i]), 2);
  return std::sqrt(error / size);
}

TEST(CudaChain, layers_follow_ref_wherever_the_sequence_is) {
  if (!cuda_available()) GTEST_SKIP() << "no GPU";
  auto ref = make_ref_backend();
  const Block blocks[] = {{512, 8, 2, 64, 1000, true},
                          {328, 6, 3, 128, 520, true, false},
                          {1096, 12, 12, 64, 2056, false, true, 40},
                          {256, 16, 2, 128, 264, true, true, 700},
                          {72, 2, 1, 64, 80, false, false}};
  for (const Block& s : blocks) {
    auto gpu = make_cuda_backend({.model = facts(s)});
    const int most = 5001;
    Net on_gpu(*gpu, s, most), on_ref(*ref, s, most);
    on_gpu.step({0}), on_ref.step({0});  // the GPU finds room for what goes between operations
    for (int context : {5000, 0, 30, 31, 32, 63, 64, 1023, 2500, 4999}) {
      auto [residual, mixed] = on_gpu.step({context});
      auto [want_residual, want_mixed] = on_ref.step({context});
      const std::string where = fmt::format("dim {}, {} heads of {}, behind {}", s.dim, s.heads, s.head_dim, context);
      EXPECT_LT(apart(mixed, want_mixed), 0.02) << where;
      EXPECT_LT(apart(residual, want_residual), 0.01) << where;
      for (int again = 0; again < 10; again++) {
        auto [same_residual, same_mixed] = on_gpu.step({context});
        expect_same_bits(same_residual, residual, where);
        expect_same_bits(same_mixed, mixed, where);
      }
    }
  }
}

TEST(CudaChain, layers_of_some_sequences_follow_ref) {
  if (!cuda_available()) GTEST_SKIP() << "no GPU";
  auto ref = make_ref_backend();
  const Block blocks[] = {{512, 8, 2, 64, 1024, true},
                          {320, 6, 3, 128, 576, true, false},
                          {1088, 12, 12, 64, 2048, false, true, 40},
                          {256, 16, 2, 128, 17920, true, true, 700},
                          {64, 2, 1, 64, 64, false, false},
                          {328, 6, 3, 128, 520, true}};  // products of no whole chunks of inputs
  const int counts[] = {16, 2, 3, 7, 8, 9, 15}, most = 1601;
  for (int i = 0; i < 7 + 5; i++) {
    const Block& s = blocks[i < 7 ? i % 2 : i - 6];
    const int n = i < 7 ? counts[i] : 11 + i % 2;
    auto gpu = make_cuda_backend({.model = facts(s)});
    Net on_gpu(*gpu, s, most, n), on_ref(*ref, s, most, n);
    for (int kind = 0; kind < 5; kind++) {
      std::vector<int> contexts;  // equal, ragged, one long one, around tiles' ends, short ones
      for (int r = 0; r < n; r++)
        contexts.push_back(kind == 0   ? 1023
                           : kind == 1 ? r * 977 % most
                           : kind == 2 ? (r == n - 1 ? 1600 : r)
                           : kind == 3 ? 30 + r
                                       : r % 2);
      on_gpu.step(contexts);  // finds room for what goes between operations, and so launches them in other groups
      auto [residual, mixed] = on_gpu.step(contexts);
      auto [want_residual, want_mixed] = on_ref.step(contexts);
      const std::string where = fmt::format("{} rows, dim {}, {} heads of {}, contexts {}", n, s.dim, s.heads, s.head_dim, kind);
      EXPECT_LT(apart(mixed, want_mixed), 0.02) << where;
      EXPECT_LT(apart(residual, want_residual), 0.01) << where;
      for (int again = 0; again < 10; again++) {
        auto [same_residual, same_mixed] = on_gpu.step(contexts);
        expect_same_bits(same_residual, residual, where);
        expect_same_bits(same_mixed, mixed, where);
      }
    }
  }
}

}  // namespace
}  // namespace mr::test
#endif
