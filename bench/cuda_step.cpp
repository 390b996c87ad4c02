// Steps of the Llama-3.1-8B shape with made-up bf16 weights on one GPU: decode at several batch sizes, prefill, one long context.
// Prints milliseconds beside the least that the bytes or flops allow at the copy and product rates measured in the same run.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "core/arena.h"
#include "main.h"

namespace mr {
namespace {

struct Shape {
  int layers = 32, dim = 4096, heads = 32, kv_heads = 8, head_dim = 128, hidden = 14336, vocab = 128256;
  int qkv() const { return (heads + 2 * kv_heads) * head_dim; }
};

struct Layer {
  Weight qkv, out, gate_up, down;
  Norm mixer_norm, ffn_norm;
  PagedKv kv;
};

constexpr int kPage = 32;

class Llama {
 public:
  Llama(CudaBackend& ops, const Shape& s, int64_t pages, int max_rows)
      : ops_(ops),
        s_(s),
        store_(WeightStore::Mode::holds, [&ops](size_t bytes) { return ops.allocate(bytes); }),
        arena_(ops.allocate(size_t(max_rows) * (size_t(s.hidden) * 4 + size_t(s.dim) * 2) + 4096)) {
    std::vector<float> ones(size_t(s.dim), 1.0f);
    Tensor weight = view(store_.take(size_t(s.dim) * 4), DType::f32, {s.dim}, Device::cuda);
    ops.copy_in(weight.data, ones.data(), size_t(s.dim) * 4);
    Norm norm{.eps = 1e-5f, .weight = weight};
    uint64_t seed = 0;
    auto make = [&](int64_t out, int64_t in) { return ops.make_up(out, in, ++seed << 32, store_); };
    embedding_ = make(s.vocab, s.dim), output_ = make(s.vocab, s.dim);
    StateLayout layout;
    for (int i = 0; i < s.layers; i++) {
      PagedKv kv{{}, DType::bf16, s.kv_heads, s.head_dim, s.head_dim};
      kv.ref = layout.add({StateSpec::Kind::paged, kv.bytes_per_token()});
      layers_.push_back(
          {make(s.qkv(), s.dim), make(s.dim, s.heads * s.head_dim), make(2 * s.hidden, s.dim), make(s.dim, s.hidden), norm, norm, kv});
    }
    final_norm_ = norm;
    const int64_t unit = layout.bytes_per_token() * kPage;
    const Weight made_up = make(unit * pages / (2 * s.dim), s.dim);  // keys and values: zeros would need less power
    state_.group.push_back({made_up.packed.as<std::byte>(), unit, pages, kPage});
    rope_.dim = s.head_dim;
    for (int i = 0; i < s.head_dim / 2; i++) rope_.inv_freq.push_back(std::pow(500000.0f, -2.0f * float(i) / float(s.head_dim)));
    auto room = [&](DType t, int64_t cols, int64_t rows) {
      return view(store_.take(size_t(rows * cols * size_of(t))), t, {rows, cols}, Device::cuda);
    };
    residual_ = room(DType::f32, s.dim, max_rows), normed_ = room(DType::bf16, s.dim, max_rows),
    qkv_ = room(DType::bf16, s.qkv(), max_rows);
    mixed_ = room(DType::bf16, s.heads * s.head_dim, max_rows), hidden_ = room(DType::bf16, s.hidden, max_rows);
    angles_ = room(DType::f32, s.head_dim, max_rows);
    last_f32_ = room(DType::f32, s.dim, 256), last_ = room(DType::bf16, s.dim, 256), logits_ = room(DType::f32, s.vocab, 256);
  }

  const StateMemory& state() const { return state_; }
  int64_t weight_bytes() const {
    int64_t n = output_.packed.bytes();
    for (const Layer& l : layers_) n += l.qkv.packed.bytes() + l.out.packed.bytes() + l.gate_up.packed.bytes() + l.down.packed.bytes();
    return n;
  }

  Tensor forward(const Batch& b) {
    const int64_t n = b.n_tokens, d = s_.head_dim;
    Tensor residual = residual_.rows(0, n), qkv = qkv_.rows(0, n), mixed = mixed_.rows(0, n), hidden = hidden_.rows(0, n),
           angles = angles_.rows(0, n);
    ops_.embed(residual, embedding_, 1, b);
    ops_.angles(angles, rope_, b);
    for (const Layer& l : layers_) {
      const Norm* next = &l == &layers_.back() ? nullptr : &(&l)[1].mixer_norm;
      ops_.linear_normed(qkv, residual, l.mixer_norm, l.qkv, {}, arena_);
      ops_.attend_new(heads(mixed, 0, s_.heads), heads(qkv, 0, s_.heads), heads(qkv, s_.heads, s_.kv_heads),
                      heads(qkv, s_.heads + s_.kv_heads, s_.kv_heads), angles, false, l.kv, b, state_,
                      {.heads = s_.heads, .scale = 1 / std::sqrt(float(d))});
      ops_.linear(residual, mixed, l.out, {.residual = residual, .next = &l.ffn_norm});
      ops_.linear_gate_normed(hidden, residual, l.ffn_norm, l.gate_up, Activation::silu, arena_);
      ops_.linear(residual, hidden, l.down, {.residual = residual, .next = next});
    }
    Tensor last = last_f32_.rows(0, b.n_out), logits = logits_.rows(0, b.n_out);
    ops_.gather(last, residual, b);
    ops_.linear_normed(logits, last, final_norm_, output_, {}, arena_);
    return logits;
  }
  void sample(Tensor logits, const Batch& b) {
    ops_.launch_sample(logits, b);
    if (++n_launched_ > 2) ops_.collect(sampled_), n_launched_--;
  }

  // One operation alone, on rows that are there, for --ops.
  void one(const std::string& op, const Batch& b, int layer) {
    const int64_t n = b.n_tokens;
    const Layer& l = layers_[size_t(layer)];
    Tensor residual = residual_.rows(0, n), normed = normed_.rows(0, n), qkv = qkv_.rows(0, n), mixed = mixed_.rows(0, n),
           hidden = hidden_.rows(0, n), angles = angles_.rows(0, n);
    if (op == "norm") ops_.norm(normed, residual, l.mixer_norm);
    if (op == "qkv") ops_.linear_normed(qkv, residual, l.mixer_norm, l.qkv, {}, arena_);
    if (op == "attend")
      ops_.attend_new(heads(mixed, 0, s_.heads), heads(qkv, 0, s_.heads), heads(qkv, s_.heads, s_.kv_heads),
                      heads(qkv, s_.heads + s_.kv_heads, s_.kv_heads), angles, false, l.kv, b, state_,
                      {.heads = s_.heads, .scale = 1 / std::sqrt(float(s_.head_dim))});
    if (op == "out") ops_.linear(residual, mixed, l.out, {.residual = residual});
    if (op == "gate_up") ops_.linear_gate_normed(hidden, residual, l.ffn_norm, l.gate_up, Activation::silu, arena_);
    if (op == "down") ops_.linear(residual, hidden, l.down, {.residual = residual});
    if (op == "output") ops_.linear(logits_.rows(0, b.n_out), last_.rows(0, b.n_out), output_, {});
    if (op == "sample") sample(logits_.rows(0, b.n_out), b);
  }
  const Shape& shape() const { return s_; }

 private:
  Tensor heads(Tensor x, int64_t first, int64_t n) const {
    Tensor t = x.cols(first * s_.head_dim, n * s_.head_dim);
    t.rank = 3, t.shape = {x.shape[0], n, s_.head_dim}, t.stride = {x.stride[0], s_.head_dim, 1};
    return t;
  }
  CudaBackend& ops_;
  Shape s_;
  WeightStore store_;
  Arena arena_;
  int n_launched_ = 0;
  std::vector<Sampled> sampled_;
  std::vector<Layer> layers_;
  Weight embedding_, output_;
  Norm final_norm_;
  RopeTable rope_;
  StateMemory state_;
  Tensor residual_, normed_, qkv_, mixed_, hidden_, angles_, last_f32_, last_, logits_;
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
      for (int r = 0; r < rows; r++) token.push_back((s * 7919 + r * 104729) % 128000), position.push_back(length + r);
      row_begin.push_back(int(token.size()));
      context.push_back(length), prompt_len.push_back(length + rows), corner.push_back(Corner::causal);
      for (int p = 0; p < pages; p++) {
        if (s > 0 && p < shared / kPage) {
          unit.push_back(unit[size_t(p)]);
        } else {
          unit.push_back(free.back()), free.pop_back();
        }
      }
      begin.push_back(int(unit.size()));
      out_row.push_back(int(token.size()) - 1), out.push_back(Out::token), sample.push_back({.top_p = 1, .repetition_penalty = 1});
    }
  }
  Batch batch() {
    Batch b;
    b.n_tokens = int(token.size()), b.n_seqs = int(context.size()), b.n_out = b.n_seqs;
    b.token = token.data(), b.position = position.data(), b.row_begin = row_begin.data(), b.context = context.data();
    b.prompt_len = prompt_len.data(), b.corner = corner.data(), b.out_row = out_row.data(), b.out = out.data(), b.sample = sample.data();
    group[0] = {unit.data(), begin.data(), nullptr, nullptr};
    b.group = group;
    return b;
  }
};

double median(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  return x[x.size() / 2];
}

// Device milliseconds of one operation over all layers, each with its own weights, so that no cache helps.
double op_time(CudaBackend& gpu, Llama& model, const Batch& b, const std::string& op) {
  const bool once = op == "output" || op == "sample";
  auto all = [&] {
    for (int i = 0; i < (once ? 1 : model.shape().layers); i++) model.one(op, b, i);
  };
  all();
  std::vector<double> ms;
  for (int i = 0; i < 5; i++) ms.push_back(gpu.milliseconds(all));
  return median(ms);
}

// shared: tokens that all sequences begin with; ragged: they are up to so much shorter than `length`.
void decode(CudaBackend& gpu, Llama& model, int n, int length, double copy, bool ops, double target, int shared = 0, int ragged = 0) {
  const Shape& s = model.shape();
  auto shorter = [&](int i) { return ragged ? i * 7919 % ragged : 0; };
  double tokens = shared;
  for (int i = 0; i < n; i++) tokens += length - shared - shorter(i);
  const double kv = tokens * s.layers * 2 * s.kv_heads * s.head_dim * 2;
  const int steps = 32;
  uint64_t key = uint64_t(n) << 40 | uint64_t(length) << 16 | uint64_t(ragged);
  std::vector<double> each;
  Steps keep(n, length - steps / 2, 1);
  auto step = [&](int at) {
    for (int i = 0; i < n; i++) keep.context[size_t(i)] = keep.position[size_t(i)] = length - shorter(i) - steps / 2 + at;
    Batch b = gpu.upload(keep.batch(), model.state());
    model.sample(gpu.replay(key, [&] { return model.forward(b); }), b);
  };
  {
    Steps last(n, length + steps, 1, shared);
    keep.unit = last.unit, keep.begin = last.begin;
  }
  step(0), step(0), step(0);
  gpu.synchronize();
  for (int repeat = 0; repeat < 3; repeat++)
    each.push_back(gpu.milliseconds([&] {
      for (int i = 0; i < steps; i++) step(i);
    }) / steps);
  const double limit = (double(model.weight_bytes()) + kv) / copy * 1e3;
  double ms = *std::min_element(each.begin(), each.end());
  fmt::print("decode  B={:<4} S={:<7.0f} {:8.3f} ms   by bytes {:7.3f} ms ({:3.0f} %)   target {}\n", n, (tokens - shared) / n + shared, ms,
             limit, 100 * limit / ms, target);
  if (ops) {
    Batch b = gpu.upload(keep.batch(), model.state());
    for (const char* op : {"norm", "qkv", "attend", "out", "gate_up", "down", "output", "sample"})
      fmt::print("    {:8} {:8.3f} ms\n", op, op_time(gpu, model, b, op));
  }
  std::fflush(stdout);
}

void prefill(CudaBackend& gpu, Llama& model, int n, int rows, bool ops, double target) {
  Steps keep(n, 0, rows);
  Batch b = gpu.upload(keep.batch(), model.state());
  model.sample(model.forward(b), b);
  gpu.synchronize();
  std::vector<double> ms;
  for (int i = 0; i < 3; i++) ms.push_back(gpu.milliseconds([&] { model.sample(model.forward(b), b); }));
  const Shape& s = model.shape();
  const double products = 2.0 * n * rows * (double(model.weight_bytes()) / 2 - double(s.vocab) * s.dim);
  const double attention = 4.0 * n * rows * double(rows) / 2 * s.heads * s.head_dim * s.layers;
  double best = *std::min_element(ms.begin(), ms.end());
  fmt::print("prefill {} x {:<6} {:8.2f} ms   {:.0f} TFLOP/s   target {}\n", n, rows, best, (products + attention) / best * 1e-9, target);
  if (ops)
    for (const char* op : {"norm", "qkv", "attend", "out", "gate_up", "down"})
      fmt::print("    {:8} {:8.3f} ms\n", op, op_time(gpu, model, b, op));
  std::fflush(stdout);
}

// One token of n sequences through the scans of a model's layers, each with its own state: Mamba-2 2.7B's and Jamba's shapes.
void scans(CudaBackend& gpu, int n, double copy) {
  const int layers = 32;
  std::vector<Buffer> held;
  auto room = [&](int64_t rows, int64_t cols) {
    Tensor t = view(held.emplace_back(gpu.allocate(size_t(rows * cols) * 2)).data(), DType::bf16, {rows, cols}, Device::cuda);
    std::vector<uint16_t> ones(size_t(rows * cols), 0x3f00);  // 0.5
    gpu.copy_in(t.data, ones.data(), ones.size() * 2);
    return t;
  };
  auto floats = [&](int64_t rows, int64_t cols) {
    std::vector<float> v(size_t(rows * cols), -0.5f);
    Tensor t = view(held.emplace_back(gpu.allocate(v.size() * 4)).data(), DType::f32, {rows, cols}, Device::cuda);
    gpu.copy_in(t.data, v.data(), v.size() * 4);
    return t;
  };
  for (bool outer : {true, false}) {
    OuterScan wide{80, 64, 128, 1, floats(1, 80), floats(1, 80)};
    DiagScan thin{8192, 16, floats(8192, 16), floats(1, 8192)};
    const int64_t inner = outer ? 80 * 64 : 8192, size = outer ? inner * 128 : inner * 16;
    StateLayout layout;
    std::vector<StateRef> refs;
    for (int i = 0; i < layers; i++) refs.push_back(layout.add({StateSpec::Kind::slot, size * 4}));
    StateMemory state;
    const int64_t unit = layout.groups()[0].bytes;
    state.group.push_back({held.emplace_back(gpu.allocate(size_t(unit * (n + 1)))).data(), unit, n + 1, 0});
    Steps keep(n, 10, 1);
    std::vector<int32_t> slot;
    for (int i = 0; i < n; i++) slot.push_back(i + 1);
    keep.group[0] = {nullptr, nullptr, slot.data(), slot.data()};
    Batch host = keep.batch();
    keep.group[0] = {nullptr, nullptr, slot.data(), slot.data()};
    host.group = keep.group;
    Batch b = gpu.upload(host, state);
    Tensor x = room(n, inner), y = room(n, inner), dt = room(n, outer ? 80 : inner), in = room(n, 128), c = room(n, 128);
    auto all = [&] {
      for (const StateRef& ref : refs) {
        wide.state = thin.state = {ref, 0};
        outer ? gpu.outer_scan(y, x, dt, in, c, wide, b, state) : gpu.diag_scan(y, x, dt, in.cols(0, 16), c.cols(0, 16), thin, b, state);
      }
      return y;
    };
    const uint64_t key = 5000 + 2 * uint64_t(n) + outer;
    for (int i = 0; i < 2; i++) gpu.replay(key, all);
    double best = 1e9;
    for (int i = 0; i < 5; i++) best = std::min(best, gpu.milliseconds([&] { gpu.replay(key, all); }));
    const double bytes = double(layers) * (double(n) * size * 8 + (outer ? 0 : size * 4));
    fmt::print("{} n={:<3} {:8.3f} ms   {:.2f} TB/s ({:.0f} % of the copy)\n", outer ? "outer_scan" : "diag_scan ", n, best,
               bytes / best * 1e-9, 100 * bytes / best * 1e3 / copy);
  }
  std::fflush(stdout);
}

// Llama-8B's products of `rows` rows from packed weights, layers enough that no cache helps.
void packed(CudaBackend& gpu, const char* format, std::initializer_list<int> row_counts, double copy) {
  const FormatOps& ops = format_ops(format);
  struct Shape {
    const char* name;
    int64_t out, in;
    bool gated;
  };
  const Shape shapes[] = {
      {"qkv", 6144, 4096, false}, {"out", 4096, 4096, false}, {"gate_up", 28672, 4096, true}, {"down", 4096, 14336, false}};
  const int layers = 4, most = 64;
  WeightStore store(WeightStore::Mode::holds, [&](size_t bytes) { return gpu.allocate(bytes); });
  std::vector<Weight> weights;
  std::vector<float> values(14336);
  std::mt19937 random(1);
  for (float& v : values) v = std::uniform_real_distribution<float>(-0.02f, 0.02f)(random);
  std::vector<std::byte> row(size_t(14336 / ops.format.group * ops.format.block_bytes));
  ops.encode_row(values.data(), 14336, row.data());
  for (int i = 0; i < layers; i++)
    for (const Shape& s : shapes) weights.push_back(gpu.place(ops, std::vector<const std::byte*>(size_t(s.out), row.data()), s.in, store));
  Buffer x = gpu.allocate(most * 14336 * 2), y = gpu.allocate(most * 28672 * 2), more = gpu.allocate(size_t(64) << 20);
  gpu.copy_in(x.data(), row.data(), row.size());
  Arena arena(std::move(more));
  for (int rows : row_counts) {
    fmt::print("{} of {:<2} rows", format, rows);
    for (int only = -1; only < 4; only++) {
      double bytes = 0;
      auto all = [&] {
        bytes = 0;
        for (int i = 0; i < layers * 4; i++) {
          const Shape& s = shapes[i % 4];
          const Weight& w = weights[size_t(i)];
          if (only >= 0 && only != i % 4) continue;
          bytes += double(w.bytes());
          Tensor in = view(x.data(), DType::bf16, {rows, s.in}), out = view(y.data(), DType::bf16, {rows, s.gated ? s.out / 2 : s.out});
          s.gated ? gpu.linear_gate(out, in, w, Activation::silu, arena) : gpu.linear(out, in, w, {});
        }
        return Tensor{};
      };
      const uint64_t key = uint64_t(rows) * 100 + uint64_t(only) + 1000000 * uint64_t(format[1] + format[3]);
      for (int i = 0; i < 3; i++) gpu.replay(key, all);
      double best = 1e9;
      for (int i = 0; i < 5; i++)
        best = std::min(best, gpu.milliseconds([&] {
          for (int k = 0; k < 4; k++) gpu.replay(key, all);
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
