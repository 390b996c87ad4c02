// Steps of the Llama-3.1-8B shape with made-up bf16 weights on one GPU: decode at several batch sizes, prefill, one long context.
// Prints milliseconds beside the least that the bytes or flops allow at the copy and product rates measured in the same run.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <deque>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "backend/op_times.h"
#include "core/arena.h"
#include "main.h"
#include "program/recorder.h"

namespace mr {
namespace {

struct Shape {
  int layers = 32, dim = 4096, heads = 32, kv_heads = 8, head_dim = 128, hidden = 14336, vocab = 128256;
  int qkv() const { return (heads + 2 * kv_heads) * head_dim; }
};

// A program and the memory of its steps.
struct Runnable {
  Program program;
  Recorder r{program};
  std::unique_ptr<Arena> arena;

  explicit Runnable(const CudaBackend& gpu) { program.activation = gpu.activations(); }
  Runnable(const Runnable&) = delete;
  void finish(CudaBackend& gpu, int64_t max_rows, int64_t max_out) {
    mr::finish(program, {});
    gpu.prepare(program);
    const std::vector<uint16_t> halves(size_t(program.workspace(max_rows, max_out)) / 2 + 64, 0x3f00);  // 0.5, for what is input
    Buffer memory = gpu.allocate(halves.size() * 2);
    gpu.copy_in(memory.data(), halves.data(), memory.size());
    arena = std::make_unique<Arena>(std::move(memory));
  }
  Tensor run(CudaBackend& gpu, const Batch& b, const StateMemory& state, Observer* observer = nullptr) {
    return gpu.run(program, b, state, *arena, observer);
  }
};

constexpr int kPage = 32;

class Llama {
 public:
  Llama(CudaBackend& ops, const Shape& s, int64_t pages, int max_rows)
      : ops_(ops), s_(s), store_(WeightStore::Mode::holds, [&ops](size_t bytes) { return ops.allocate(bytes); }), net_(ops) {
    std::vector<float> ones(size_t(s.dim), 1.0f);
    norm_ = {.eps = 1e-5f, .weight = view(store_.take(size_t(s.dim) * 4), DType::f32, {s.dim}, Device::cuda)};
    ops.copy_in(norm_.weight.data, ones.data(), size_t(s.dim) * 4);
    rope_.dim = s.head_dim;
    for (int i = 0; i < s.head_dim / 2; i++) rope_.inv_freq.push_back(std::pow(500000.0f, -2.0f * float(i) / float(s.head_dim)));
    StateLayout layout;
    record(layout);
    net_.finish(ops, max_rows, 256);
    const int64_t unit = layout.bytes_per_token() * kPage;
    const Weight made_up = ops.make_up(unit * pages / (2 * s.dim), s.dim, 1, store_);  // keys and values: zeros would need less power
    state_.group.push_back({made_up.packed.as<std::byte>(), unit, pages, kPage});
  }

  const StateMemory& state() const { return state_; }
  const Shape& shape() const { return s_; }
  int64_t weight_bytes() const {  // that a step reads whole
    int64_t n = 0;
    for (size_t i = 1; i < weights_.size(); i++) n += weights_[i].packed.bytes();
    return n;
  }
  void step(const Batch& b, Observer* observer = nullptr) {
    ops_.launch_sample(net_.run(ops_, b, state_, observer), b);
    if (++n_launched_ <= 2) return;
    ops_.collect(sampled_);
    n_launched_--;
  }

 private:
  const Weight& weight(int64_t out, int64_t in) {
    return weights_.emplace_back(ops_.make_up(out, in, uint64_t(weights_.size() + 2) << 32, store_));
  }
  void record(StateLayout& layout) {
    Recorder& r = net_.r;
    const int64_t d = s_.head_dim;
    auto linear = [&](Value x, int64_t out, const char* name, ValueType type = ValueType::activation) {
      return r.linear(x, {&weight(out, x.cols), 1}, {.name = name, .type = type});
    };
    const Value x = r.embed(weight(s_.vocab, s_.dim), 1, "embedding"), angles = r.angles(rope_);
    for (r.layer = 0; r.layer < s_.layers; r.layer++) {
      PagedKv& kv = kv_.emplace_back(PagedKv{{}, DType::bf16, s_.kv_heads, s_.head_dim, s_.head_dim});
      kv.ref = layout.add({StateSpec::Kind::paged, kv.bytes_per_token()});
      const Value qkv = linear(r.norm(x, norm_), s_.qkv(), "qkv");
      auto heads = [&](int64_t first, int n) { return qkv.columns(first * d, n * d).as_heads(n); };
      const Value q = heads(0, s_.heads), k = heads(s_.heads, s_.kv_heads);
      r.rope(q, angles, false);
      r.rope(k, angles, false);
      r.store_kv(k, heads(s_.heads + s_.kv_heads, s_.kv_heads), kv);
      r.add(x, linear(r.attend(q, kv, {.heads = s_.heads, .scale = 1 / std::sqrt(float(d))}), s_.dim, "out"));
      const Value h = linear(r.norm(x, norm_), 2 * s_.hidden, "gate_up");
      r.add(x, linear(r.gate(h.columns(0, s_.hidden), h.columns(s_.hidden, s_.hidden), Activation::silu), s_.dim, "down"));
    }
    net_.program.logits = linear(r.norm(r.gather(x), norm_), s_.vocab, "output", ValueType::f32);
  }

  CudaBackend& ops_;
  Shape s_;
  WeightStore store_;
  std::deque<Weight> weights_;  // the embedding first
  std::deque<PagedKv> kv_;
  Norm norm_;
  RopeTable rope_;
  StateMemory state_;
  Runnable net_;
  int n_launched_ = 0;
  std::vector<Sampled> sampled_;
};

// Sequences of given contexts that add `rows` each; their pages are dealt out in no order, as after a while in an engine.
struct Steps {
  std::vector<int32_t> token, position, row_begin{0}, context, prompt_len, out_row, unit, begin{0};
  std::vector<Corner> corner;
  std::vector<Out> out;
  std::vector<SampleRow> sample;
  std::vector<GroupTable> group{1};
  Steps(int n_seqs, int length, int rows, int shared = 0) {  // shared: tokens that all begin with
    const int pages = (length + rows + kPage - 1) / kPage;
    std::vector<int32_t> free(size_t(n_seqs) * size_t(pages - shared / kPage) + size_t(shared / kPage));
    std::iota(free.begin(), free.end(), 1);
    std::shuffle(free.begin(), free.end(), std::mt19937(7));
    for (int s = 0; s < n_seqs; s++) {
      for (int r = 0; r < rows; r++) {
        token.push_back((s * 7919 + r * 104729) % 128000);
        position.push_back(length + r);
      }
      row_begin.push_back(int(token.size()));
      context.push_back(length);
      prompt_len.push_back(length + rows);
      corner.push_back(Corner::causal);
      for (int p = 0; p < pages; p++) {
        if (s > 0 && p < shared / kPage) {
          unit.push_back(unit[size_t(p)]);
        } else {
          unit.push_back(free.back());
          free.pop_back();
        }
      }
      begin.push_back(int(unit.size()));
      out_row.push_back(int(token.size()) - 1);
      out.push_back(Out::token);
      sample.push_back({.top_p = 1, .repetition_penalty = 1});
    }
  }
  Batch batch() {
    Batch b;
    b.n_tokens = int(token.size());
    b.n_seqs = int(context.size());
    b.n_out = b.n_seqs;
    b.token = token.data();
    b.position = position.data();
    b.row_begin = row_begin.data();
    b.context = context.data();
    b.prompt_len = prompt_len.data();
    b.corner = corner.data();
    b.out_row = out_row.data();
    b.out = out.data();
    b.sample = sample.data();
    group[0] = {unit.data(), begin.data(), nullptr, nullptr};
    b.group = group;
    return b;
  }
};

double median(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  return x[x.size() / 2];
}

// Where the time of a step goes, each operation waited for: together they are slower than a step.
void print_ops(CudaBackend& gpu, Llama& model, const Batch& b) {
  OpTimes times;
  model.step(b, &times);
  gpu.synchronize();
  times.reset();
  times.begin();
  model.step(b, &times);
  for (const auto& [what, t] : times.times()) fmt::print("    {:50} {:4} x  {:8.3f} ms\n", what, t.calls, t.seconds * 1e3);
}

// shared: tokens that all sequences begin with; ragged: they are up to so much shorter than `length`.
void decode(CudaBackend& gpu, Llama& model, int n, int length, double copy, bool ops, double target, int shared = 0, int ragged = 0) {
  const Shape& s = model.shape();
  auto shorter = [&](int i) { return ragged ? i * 7919 % ragged : 0; };
  double tokens = shared;
  for (int i = 0; i < n; i++) tokens += length - shared - shorter(i);
  const double kv = tokens * s.layers * 2 * s.kv_heads * s.head_dim * 2;
  const int steps = 32;
  std::vector<double> each;
  Steps keep(n, length - steps / 2, 1);
  auto step = [&](int at) {
    for (int i = 0; i < n; i++) keep.context[size_t(i)] = keep.position[size_t(i)] = length - shorter(i) - steps / 2 + at;
    model.step(gpu.upload(keep.batch(), model.state()));
  };
  {
    Steps last(n, length + steps, 1, shared);
    keep.unit = last.unit;
    keep.begin = last.begin;
  }
  for (int i = 0; i < 3; i++) step(0);
  gpu.synchronize();
  for (int repeat = 0; repeat < 3; repeat++)
    each.push_back(gpu.milliseconds([&] {
      for (int i = 0; i < steps; i++) step(i);
    }) / steps);
  const double limit = (double(model.weight_bytes()) + kv) / copy * 1e3;
  double ms = *std::min_element(each.begin(), each.end());
  fmt::print("decode  B={:<4} S={:<7.0f} {:8.3f} ms   by bytes {:7.3f} ms ({:3.0f} %)   target {}\n", n, (tokens - shared) / n + shared, ms,
             limit, 100 * limit / ms, target);
  if (ops) print_ops(gpu, model, gpu.upload(keep.batch(), model.state()));
  std::fflush(stdout);
}

void prefill(CudaBackend& gpu, Llama& model, int n, int rows, bool ops, double target) {
  Steps keep(n, 0, rows);
  Batch b = gpu.upload(keep.batch(), model.state());
  model.step(b);
  gpu.synchronize();
  std::vector<double> ms;
  for (int i = 0; i < 3; i++) ms.push_back(gpu.milliseconds([&] { model.step(b); }));
  const Shape& s = model.shape();
  const double products = 2.0 * n * rows * (double(model.weight_bytes()) / 2 - double(s.vocab) * s.dim);
  const double attention = 4.0 * n * rows * double(rows) / 2 * s.heads * s.head_dim * s.layers;
  double best = *std::min_element(ms.begin(), ms.end());
  fmt::print("prefill {} x {:<6} {:8.2f} ms   {:.0f} TFLOP/s   target {}\n", n, rows, best, (products + attention) / best * 1e-9, target);
  if (ops) print_ops(gpu, model, b);
  std::fflush(stdout);
}

// One token of n sequences through the scans of a model's layers, each with its own state: Mamba-2 2.7B's and Jamba's shapes.
void scans(CudaBackend& gpu, int n, double copy) {
  const int layers = 32;
  std::vector<Buffer> held;
  auto floats = [&](int64_t rows, int64_t cols) {
    std::vector<float> v(size_t(rows * cols), -0.5f);
    Tensor t = view(held.emplace_back(gpu.allocate(v.size() * 4)).data(), DType::f32, {rows, cols}, Device::cuda);
    gpu.copy_in(t.data, v.data(), v.size() * 4);
    return t;
  };
  for (bool outer : {true, false}) {
    const int64_t inner = outer ? 80 * 64 : 8192, size = outer ? inner * 128 : inner * 16;
    Runnable net(gpu);
    StateLayout layout;
    std::deque<OuterScan> wide;
    std::deque<DiagScan> thin;
    const Tensor a = floats(outer ? 80 : 8192, outer ? 1 : 16), d = floats(1, outer ? 80 : 8192);
    auto input = [&](int64_t cols) { return net.r.input({}, cols, ValueType::activation); };
    const Value x = input(inner), dt = input(outer ? 80 : inner), in = input(outer ? 128 : 16), c = input(outer ? 128 : 16);
    for (int i = 0; i < layers; i++) {
      const SlotState slot{layout.add({StateSpec::Kind::slot, size * 4})};
      net.program.logits = outer ? net.r.outer_scan(x, dt, in, c, wide.emplace_back(OuterScan{80, 64, 128, 1, a, d, 0, 1e30f, slot}))
                                 : net.r.diag_scan(x, dt, in, c, thin.emplace_back(DiagScan{8192, 16, a, d, slot}));
    }
    net.finish(gpu, n, n);
    StateMemory state;
    const int64_t unit = layout.groups()[0].bytes;
    state.group.push_back({held.emplace_back(gpu.allocate(size_t(unit * (n + 1)))).data(), unit, n + 1, 0});
    Steps keep(n, 10, 1);
    std::vector<int32_t> slot;
    for (int i = 0; i < n; i++) slot.push_back(i + 1);
    Batch host = keep.batch();
    keep.group[0] = {nullptr, nullptr, slot.data(), slot.data()};
    host.group = keep.group;
    const Batch b = gpu.upload(host, state);
    for (int i = 0; i < 2; i++) net.run(gpu, b, state);
    double best = 1e9;
    for (int i = 0; i < 5; i++) best = std::min(best, gpu.milliseconds([&] { net.run(gpu, b, state); }));
    const double bytes = double(layers) * (double(n) * size * 8 + (outer ? 0 : size * 4));
    fmt::print("{} n={:<3} {:8.3f} ms   {:.2f} TB/s ({:.0f} % of the copy)\n", outer ? "outer_scan" : "diag_scan ", n, best,
               bytes / best * 1e-9, 100 * bytes / best * 1e3 / copy);
  }
  std::fflush(stdout);
}

// Llama-8B's products of `rows` rows from packed weights, layers enough that no cache helps.
void packed(CudaBackend& gpu, const char* format, std::initializer_list<int> row_counts, double copy) {
  const Codec& codec = get_codec(format);
  struct Shape {
    const char* name;
    int64_t out, in;
    bool gated;
  };
  const Shape shapes[] = {
      {"qkv", 6144, 4096, false}, {"out", 4096, 4096, false}, {"gate_up", 28672, 4096, true}, {"down", 4096, 14336, false}};
  const int layers = 4, most = 64;
  WeightStore store(WeightStore::Mode::holds, [&](size_t bytes) { return gpu.allocate(bytes); });
  std::deque<Weight> weights;
  std::vector<float> values(14336);
  std::mt19937 random(1);
  for (float& v : values) v = std::uniform_real_distribution<float>(-0.02f, 0.02f)(random);
  std::vector<std::byte> row(size_t(codec.row_bytes(14336)));
  codec.encode(values.data(), 14336, row.data());
  for (int i = 0; i < layers; i++)
    for (const Shape& s : shapes) {
      StoredWeight same(codec, s.in);
      same.add(row.data(), s.out, std::vector<int64_t>(size_t(s.out)));
      weights.push_back(gpu.place(same, store));
    }
  for (int rows : row_counts) {
    fmt::print("{} of {:<2} rows", format, rows);
    Steps keep(rows, 0, 1);
    Batch host = keep.batch();
    host.group = {};
    const Batch b = gpu.upload(host, {});
    for (int only = -1; only < 4; only++) {
      Runnable net(gpu);
      double bytes = 0;
      for (int i = 0; i < layers * 4; i++) {
        const Shape& s = shapes[i % 4];
        const Weight& w = weights[size_t(i)];
        if (only >= 0 && only != i % 4) continue;
        bytes += double(w.bytes());
        Value y = net.r.linear(net.r.input({}, s.in, ValueType::activation), {&w, 1});
        if (s.gated) y = net.r.gate(y.columns(0, s.out / 2), y.columns(s.out / 2, s.out / 2), Activation::silu);
        net.program.logits = y;
      }
      net.finish(gpu, most, most);
      for (int i = 0; i < 3; i++) net.run(gpu, b, {});
      double best = 1e9;
      for (int i = 0; i < 5; i++)
        best = std::min(best, gpu.milliseconds([&] {
          for (int k = 0; k < 4; k++) net.run(gpu, b, {});
        }) / 4);
      fmt::print("   {} {:.1f} us {:.0f} %", only < 0 ? "all" : shapes[only].name, best / layers * 1e3, 100 * bytes / best * 1e3 / copy);
    }
    fmt::print("\n");
    std::fflush(stdout);
  }
}

}  // namespace

static int run(int argc, char** argv) {
  bool ops = false;
  std::string only;  // such as "d16,p8,long": the lines that are wanted; empty: all
  auto wanted = [&](const std::string& line) { return only.empty() || only.find(line) != std::string::npos; };
  CudaOptions options;
  for (int i = 1; i < argc; i++) {
    ops |= !std::strcmp(argv[i], "--ops");
    if (!std::strcmp(argv[i], "--skinny") && i + 1 < argc) options.skinny_rows = std::atoi(argv[++i]);
    if (!std::strcmp(argv[i], "--only") && i + 1 < argc) only = argv[++i];
    if (!std::strcmp(argv[i], "--chain") && i + 1 < argc) options.chain = std::atoi(argv[++i]);
    if (!std::strcmp(argv[i], "--share"))  // the model's sizes, so that prefixes are shared
      options.model = ModelFacts{.attention = {{32, 8, 128, 0}}, .n_layers = 32, .parameters = 8'030'261'248, .plain_blocks = true};
    options.deterministic |= !std::strcmp(argv[i], "--deterministic");
  }
  auto gpu = make_cuda_backend(options);
  fmt::print("{}\n", gpu->device());
  const size_t size = size_t(4) << 30;
  Buffer a = gpu->allocate(size), b = gpu->allocate(size);
  std::vector<double> ms;
  for (int i = 0; i < 5; i++) ms.push_back(gpu->milliseconds([&] { gpu->copy_within(a.data(), b.data(), size); }));
  const double copy = 2.0 * double(size) / *std::min_element(ms.begin(), ms.end()) * 1e3;
  fmt::print("copy {:.2f} TB/s\n", copy * 1e-12);
  if (wanted("scans"))
    for (int n : {1, 16, 64}) scans(*gpu, n, copy);
  if (wanted("packed"))
    for (const char* format : {"q8_0", "q4_0", "q4_1"}) packed(*gpu, format, {1, 4, 8, 16, 32, 64}, copy);
  if (only == "scans" || only == "packed") return 0;
  Llama model(*gpu, {}, 10500, 16384);
  gpu->synchronize();
  for (auto [n, target] : {std::pair{1, 4.1}, {16, 4.8}, {32, 5.4}, {64, 6.6}, {128, 9.2}, {256, 15.5}})
    if (wanted(fmt::format("d{},", n))) decode(*gpu, model, n, 1024, copy, ops, target);
  if (wanted("long")) decode(*gpu, model, 1, 100000, copy, ops, 0);
  if (wanted("ragged")) decode(*gpu, model, 256, 1088, copy, ops, 0, 0, 897);
  if (wanted("shared")) decode(*gpu, model, 256, 1280, copy, ops, 0, 1024);
  if (wanted("p1,")) prefill(*gpu, model, 1, 2048, ops, 47);
  if (wanted("p8,")) prefill(*gpu, model, 8, 2048, ops, 370);
  return 0;
}

}  // namespace mr

int main(int argc, char** argv) { return mr::guarded(mr::run, argc, argv); }
