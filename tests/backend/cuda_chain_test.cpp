// Layers of a transformer for one token of one or some sequences, which the CUDA backend runs as one kernel and replays as a graph,
// against ref. What flows between operations is rounded to bf16 there, and the error of a result is taken as a whole. Skipped without
// a GPU.
#ifdef MR_CUDA
#include "backend/cuda/cuda_backend.h"
#include "backend/programs.h"

namespace mr::test {
namespace {

struct Block {
  int dim, heads, kv_heads, head_dim, hidden;
  bool bias = false, norm_weights = true;
  int window = 0, layers = 3;
  int qkv() const { return (heads + 2 * kv_heads) * head_dim; }
};

// A model of such blocks whose steps of several rows may be one kernel; a window, so that no prefix is shared.
ModelFacts facts(const Block& s) {
  return {.attention = {{s.heads, s.kv_heads, s.head_dim, /*window=*/1}}, .n_layers = 1, .parameters = 1 << 30, .plain_blocks = true};
}

// The same layers on any backend for the next tokens of n sequences; all layers use the same pages.
class Layers {
 public:
  Layers(Backend& b, const Block& s, int most_tokens, int n = 1) : n_(n), net_(b) {
    Recorder& r = net_.r();
    const Weight &qkv_w = net_.weight(s.qkv(), s.dim, 11), &out_w = net_.weight(s.dim, s.heads * s.head_dim, 12),
                 &gate_up_w = net_.weight(2 * s.hidden, s.dim, 13), &down_w = net_.weight(s.dim, s.hidden, 14);
    const Tensor qkv_bias = s.bias ? net_.floats({s.qkv()}, 15) : Tensor{}, out_bias = s.bias ? net_.floats({s.dim}, 16) : Tensor{};
    Norm first, second;
    if (s.norm_weights) {
      first.weight = net_.floats({s.dim}, 17);
      second.weight = net_.floats({s.dim}, 18);
      second.offset = 1;
    }
    const Norm &first_norm = net_.keep(first), &second_norm = net_.keep(second);
    const PagedKv& kv = net_.paged(s.kv_heads, s.head_dim);
    const Value x = net_.input(s.dim, ValueType::f32, 19, 3), angles = r.angles(net_.rope(s.head_dim));
    Value mixed;
    for (int i = 0; i < s.layers; i++) {
      const Value qkv = r.linear(r.norm(x, first_norm), {&qkv_w, 1}, {.bias = qkv_bias});
      auto heads = [&](int64_t begin, int count) { return qkv.columns(begin * s.head_dim, count * s.head_dim).as_heads(count); };
      const Value q = heads(0, s.heads), k = heads(s.heads, s.kv_heads);
      r.rope(q, angles, false);
      r.rope(k, angles, false);
      r.store_kv(k, heads(s.heads + s.kv_heads, s.kv_heads), kv);
      mixed = r.attend(q, kv, {.heads = s.heads, .scale = 1 / std::sqrt(float(s.head_dim)), .window = s.window});
      r.add(x, r.linear(mixed, {&out_w, 1}, {.bias = out_bias, .scale = 0.5f}));
      const Value h = r.linear(r.norm(x, second_norm), {&gate_up_w, 1});
      r.add(x, r.linear(r.gate(h.columns(0, s.hidden), h.columns(s.hidden, s.hidden), Activation::silu), {&down_w, 1}));
    }
    net_.tap(x);
    net_.tap(mixed);
    net_.finish({});
    std::vector<float> begin;
    for (int i = 0; i < n * s.dim; i++) begin.push_back(f32_from_bf16(bf16_from_f32(3 * value(19, uint64_t(i)))));
    net_.set(x, begin);
    session_.emplace(net_, std::vector<int>(size_t(n), most_tokens));
    session_->fill(kv, most_tokens - 1);
  }

  // The residual stream, and the last layer's attention, of tokens after so many others.
  std::pair<std::vector<float>, std::vector<float>> step(const std::vector<int>& contexts) {
    session_->go_to(contexts);
    const std::vector<float> all = session_->step(std::vector<int>(size_t(n_), 1), true);
    return {net_.part(all, 0), net_.part(all, 1)};
  }

 private:
  int n_;
  Net net_;
  std::optional<Session> session_;
};

// Was any kernel launched for a chain of operations, `what` among them?
class Chained {
 public:
  explicit Chained(CudaBackend& gpu, const char* what = "") : gpu_(gpu) {
    gpu.log_launches([this, what](const std::string& line) {
      found_ |= line.find("chain of") != std::string::npos && line.find(what) != std::string::npos;
    });
  }
  ~Chained() { gpu_.log_launches({}); }
  explicit operator bool() const { return found_; }

 private:
  CudaBackend& gpu_;
  bool found_ = false;
};

void expect_ref(Layers& on_gpu, Layers& on_ref, const std::vector<int>& contexts, const std::string& where) {
  auto [want_residual, want_mixed] = on_ref.step(contexts);
  auto near = [&](const auto& got, const char* when) {
    expect_near(got.second, want_mixed, 0.02, where + when);
    expect_near(got.first, want_residual, 0.01, where + when);
  };
  near(on_gpu.step(contexts), ", first");  // finds room for what goes between operations, and so may launch them in other groups
  const auto [residual, mixed] = on_gpu.step(contexts);
  near(std::pair{residual, mixed}, "");
  for (int again = 0; again < 10; again++) {
    auto [same_residual, same_mixed] = on_gpu.step(contexts);
    expect_same_bits(same_residual, residual, where);
    expect_same_bits(same_mixed, mixed, where);
  }
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
    Layers on_gpu(*gpu, s, most), on_ref(*ref, s, most);
    const Chained chained(*gpu);
    for (int context : {0, 5000, 0, 30, 31, 32, 63, 64, 1023, 2500, 4999})
      expect_ref(on_gpu, on_ref, {context}, fmt::format("dim {}, {} heads of {}, behind {}", s.dim, s.heads, s.head_dim, context));
    EXPECT_TRUE(chained) << s.dim;
  }
}

// In deterministic mode a row's bits are the same in one kernel for all layers, in kernels of few rows and of many; sums are cut into one,
// two and four parts.
TEST(CudaChain, deterministic_rows_are_the_same_alone_and_among_others) {
  if (!cuda_available()) GTEST_SKIP() << "no GPU";
  auto gpu = make_cuda_backend({.deterministic = true});
  for (auto [dim, hidden] : {std::pair{64, 64}, {512, 1088}, {1024, 2048}, {4096, 576}, {8256, 192}, {1000, 640}, {320, 17920}}) {
    Net net(*gpu);
    Recorder& r = net.r();
    const Value x = net.input(dim, ValueType::f32, 1, 3);
    const Tensor bias = net.floats({dim}, 2), bias_out = net.floats({96}, 3);
    const Weight &gate_up = net.weight(2 * hidden, dim, 4), &down = net.weight(dim, hidden, 5), &out = net.weight(96, dim, 6);
    for (uint64_t layer = 0; layer < 3; layer++) {
      const Value h = r.linear(r.norm(x, net.norm(dim, 7 + layer)), {&gate_up, 1});
      const Value gated = r.gate(h.columns(0, hidden), h.columns(hidden, hidden), Activation::silu);
      r.add(x, r.linear(gated, {&down, 1}, {.bias = bias, .scale = 0.7f}));
    }
    net.tap(r.linear(r.norm(x, net.norm(dim, 17)), {&out, 1}, {.bias = bias_out}));
    net.tap(x);
    net.finish({});
    const std::vector<float> all = run_rows(net, 300);
    const Chained chained(*gpu);
    for (int rows : {1, 2, 8, 9, 16, 17, 33, 64, 65, 128, 129, 257}) {
      const std::vector<float> want(all.begin(), all.begin() + rows * (dim + 96));
      expect_same_bits(run_rows(net, rows), want, fmt::format("{} rows, {} to {}", rows, dim, hidden));
    }
    EXPECT_TRUE(chained || dim % 64) << dim;
  }
}

// In deterministic mode the layers of 1 to 16 sequences, attention included, are one kernel; its bits are those of separate kernels, whose
// attention is that of prompts. Contexts end before, at and after the ends of tiles and of spans.
TEST(CudaChain, deterministic_layers_are_the_same_in_one_kernel_and_in_many) {
  if (!cuda_available()) GTEST_SKIP() << "no GPU";
  auto ref = make_ref_backend();
  const Block blocks[] = {{512, 8, 2, 64, 1024, true},
                          {320, 6, 3, 128, 576, true, false},
                          {1088, 12, 12, 64, 2048, false, true, 40},
                          {256, 16, 2, 128, 1024, true, true, 700},
                          {64, 2, 1, 64, 64, false, false}};
  const int counts[] = {1, 2, 8, 9, 16}, most = 1601;
  for (int i = 0; i < 10; i++) {
    const Block& s = blocks[i % 5];
    const int n = counts[(i + i / 5 * 2) % 5];
    auto gpu = make_cuda_backend({.deterministic = true, .model = facts(s)}),
         apart = make_cuda_backend({.deterministic = true, .model = facts(s), .chain = 1000});
    Layers one(*gpu, s, most, n), many(*apart, s, most, n), on_ref(*ref, s, most, n);
    const Chained chained(*gpu, "attend");
    for (int kind = 0; kind < 7; kind++) {
      std::vector<int> contexts;  // equal, ragged, one long one, around the ends of spans and of tiles, short ones, in the first span
      for (int r = 0; r < n; r++)
        contexts.push_back(kind == 0   ? 1023
                           : kind == 1 ? (1200 + r * 977) % most
                           : kind == 2 ? (r == n - 1 ? 1600 : r)
                           : kind == 3 ? 252 + r
                           : kind == 4 ? 766 + r % 5
                           : kind == 5 ? r % 2
                                       : 60 + r);
      const std::string where = fmt::format("{} rows, dim {}, {} heads of {}, contexts {}", n, s.dim, s.heads, s.head_dim, kind);
      expect_ref(one, on_ref, contexts, where);
      const auto [residual, mixed] = one.step(contexts);
      const auto [same_residual, same_mixed] = many.step(contexts);
      expect_same_bits(mixed, same_mixed, where + ", attention");
      expect_same_bits(residual, same_residual, where);
    }
    EXPECT_TRUE(chained) << n << " rows, dim " << s.dim;
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
    Layers on_gpu(*gpu, s, most, n), on_ref(*ref, s, most, n);
    const Chained chained(*gpu);
    for (int kind = 0; kind < 5; kind++) {
      std::vector<int> contexts;  // equal, ragged, one long one, around tiles' ends, short ones
      for (int r = 0; r < n; r++)
        contexts.push_back(kind == 0   ? 1023
                           : kind == 1 ? r * 977 % most
                           : kind == 2 ? (r == n - 1 ? 1600 : r)
                           : kind == 3 ? 30 + r
                                       : r % 2);
      expect_ref(on_gpu, on_ref, contexts,
                 fmt::format("{} rows, dim {}, {} heads of {}, contexts {}", n, s.dim, s.heads, s.head_dim, kind));
    }
    EXPECT_TRUE(chained || i == 11) << n << " rows, dim " << s.dim;
  }
}

}  // namespace
}  // namespace mr::test
#endif
