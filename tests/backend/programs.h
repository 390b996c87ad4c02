// Runs programs of tests on any backend: copies inputs there, runs the whole list, and returns the tapped values. Values are determined
// by their names and representable in bf16, so that every backend computes with the same.
#pragma once

#include <bit>
#include <iterator>
#include <memory>
#include <optional>

#include "backend/random_blocks.h"
#include "backend/world.h"
#include "core/arena.h"
#include "program/recorder.h"

namespace mr::test {

constexpr double kHalfStep = 0x1p-8;  // the largest relative error of rounding to bf16

inline Array& whole(Array& a) {  // rounds to bf16 values
  for (float& x : a.data) x = f32_from_bf16(bf16_from_f32(x));
  return a;
}

// Rows as stored in a file of the format.
struct StoredRows {
  std::vector<std::byte> file;
  StoredWeight weight;
  StoredRows(const Codec& codec, const Array& values) {
    const int64_t n = values.view.shape[0], in = values.view.shape[1];
    file = stored_rows(codec, values.data.data(), n, in, unsigned(n + in));
    weight = {codec, file.data(), n, in};
  }
};

// A program and everything it points to.
class Net {
 public:
  explicit Net(Backend& backend, std::optional<DType> activation = {}, std::string_view format = "f32")
      : backend_(backend),
        format_(get_codec(format)),
        store_(WeightStore::Mode::holds, [&backend](size_t n) { return backend.allocate(n); }) {
    program_.activation = activation.value_or(backend.activations());
  }
  Net(const Net&) = delete;

  Recorder& r() { return recorder_; }
  Backend& backend() { return backend_; }
  const Program& program() const { return program_; }
  const StateLayout& layout() const { return layout_; }

  // Operands besides values.
  template <class T>
  const T& keep(T x) {
    auto p = std::make_shared<T>(std::move(x));
    kept_.push_back(p);
    return *p;
  }
  const Weight& weight(const StoredWeight& stored) { return keep(backend_.place(stored, store_)); }
  const Weight& weight(const Array& values) { return weight(StoredRows(format_, values).weight); }
  const Weight& weight(int64_t out, int64_t in, uint64_t name) { return weight(made(out, in, name)); }
  std::span<const Weight> weights(int n, int64_t out, int64_t in, uint64_t name) {
    std::vector<Weight> all;
    for (int i = 0; i < n; i++) all.push_back(weight(out, in, name * 1000 + uint64_t(i)));
    return keep(std::move(all));
  }
  static Array made(int64_t out, int64_t in, uint64_t name) {  // scaled so that products stay near 1
    Array values({out, in});
    whole(values.fill(name, std::sqrt(3.0f / float(in))));
    return values;
  }
  Tensor floats(Tensor host) {
    if (!host) return host;
    Tensor t = host;
    t.data = store_.take(size_t(host.bytes()));
    backend_.copy_in(t.data, host.data, size_t(host.bytes()));
    return t;
  }
  Tensor floats(std::initializer_list<int64_t> shape, uint64_t name, float scale = 1, float shift = 0) {
    Array a(shape);
    a.fill(name, scale, shift);
    return floats(a.view);
  }
  const Norm& norm(const Norm& host) { return keep(Norm{host.kind, host.eps, floats(host.weight), floats(host.bias), host.offset}); }
  const Norm& norm(int64_t dim, uint64_t name) { return keep(Norm{Norm::Kind::rms, 1e-5f, floats({dim}, name, 0.5f, 1)}); }
  const RopeTable& rope(int dim) {
    RopeTable table{.dim = dim};
    for (int i = 0; i < dim / 2; i++) table.inv_freq.push_back(std::pow(10000.0f, -2.0f * float(i) / float(dim)));
    return keep(std::move(table));
  }
  const PagedKv& paged(int kv_heads, int dim, DType type = DType::bf16) {
    PagedKv kv{{}, type, kv_heads, dim, dim};
    kv.ref = layout_.add({StateSpec::Kind::paged, kv.bytes_per_token()});
    return keep(kv);
  }
  SlotState slot(int64_t floats) { return {layout_.add({StateSpec::Kind::slot, floats * 4}), 0}; }

  // An input: element (row, column) is determined by name, step and position.
  Value input(int64_t cols, ValueType type, uint64_t name, float scale = 1, float shift = 0) {
    const Value v = recorder_.input({}, cols, type);
    inputs_.push_back({v, name, scale, shift});
    return v;
  }
  Value input(int64_t cols, uint64_t name, float scale = 1, float shift = 0) {
    return input(cols, ValueType::activation, name, scale, shift);
  }
  // Replaces the input's values from now on.
  void set(Value v, std::vector<float> values) {
    for (Input& in : inputs_)
      if (in.value.id == v.id) in.given = std::move(values);
  }

  void tap(Value v) { taps_.push_back(v.as_matrix()); }  // floats of a row a token; may have no columns
  void finish(const ProgramOptions& options = {.share = false}) {
    int64_t cols = 0;
    for (const Value& v : taps_) cols += v.cols;
    program_.logits = input(cols, ValueType::f32, 0, 0);
    cols = 0;
    for (const Value& v : taps_) {
      if (v.cols == 0) continue;
      program_.whole.ops.push_back({AddOp{program_.logits.columns(cols, v.cols), v}});
      cols += v.cols;
    }
    mr::finish(program_, options);
    program_.tail = program_.whole;
    backend_.prepare(program_);
  }
  bool has(Rule rule) const {
    return std::ranges::any_of(program_.whole.marks, [&](const Mark& m) { return m.rule == rule; });
  }

  // [rows, tapped columns]. Memory starts as NaN. State is in the backend's memory; `host`: see upload().
  std::vector<float> run(const Batch& host, const StateMemory& state, uint64_t step = 0) {
    const Batch batch = backend_.upload(host, state);
    const auto bytes = size_t(program_.whole.bytes(batch.n_tokens, batch.n_out)) + 64;
    if (bytes > room_) {
      room_ = bytes;
      arena_ = std::make_unique<Arena>(backend_.allocate(bytes));
    }
    const Bound at(program_, program_.whole, batch.n_tokens, batch.n_out, *arena_);
    const std::vector<std::byte> nan(bytes, std::byte(0xff));
    backend_.copy_in(arena_->take(bytes), nan.data(), bytes);
    for (const Input& in : inputs_) write(at(in.value), values_of(in, batch.n_tokens, step));
    const Tensor out = backend_.run(program_, batch, state, *arena_);
    backend_.synchronize();
    return read(out);
  }
  // The columns of a tapped value in the result of run().
  std::vector<float> part(const std::vector<float>& all, size_t tap) const {
    int64_t first = 0;
    for (size_t i = 0; i < tap; i++) first += taps_[i].cols;
    std::vector<float> some;
    for (auto row = all.begin(); row != all.end(); row += program_.logits.cols)
      some.insert(some.end(), row + first, row + first + taps_[tap].cols);
    return some;
  }

 private:
  struct Input {
    Value value;
    uint64_t name;
    float scale, shift;
    std::vector<float> given{};
  };
  std::vector<float> values_of(const Input& in, int64_t rows, uint64_t step) const {
    if (!in.given.empty()) return in.given;
    std::vector<float> x(size_t(rows * in.value.cols));
    for (size_t i = 0; i < x.size(); i++) x[i] = f32_from_bf16(bf16_from_f32(in.shift + in.scale * value(in.name * 64 + step, i)));
    return x;
  }
  void write(Tensor to, const std::vector<float>& x) {
    check(int64_t(x.size()) == to.size(), "{} values are given for {}", x.size(), shape_string(to));
    std::vector<uint16_t> half;
    if (to.dtype == DType::bf16)
      for (float f : x) half.push_back(bf16_from_f32(f));
    backend_.copy_in(to.data, half.empty() ? static_cast<const void*>(x.data()) : half.data(), size_t(to.bytes()));
  }
  std::vector<float> read(Tensor from) {
    std::vector<float> x(size_t(from.size()));
    backend_.copy_out(x.data(), from.data, x.size() * 4);
    return x;
  }

  Backend& backend_;
  const Codec& format_;
  WeightStore store_;
  Program program_;
  Recorder recorder_{program_};
  StateLayout layout_;
  std::vector<std::shared_ptr<void>> kept_;
  std::vector<Input> inputs_;
  std::vector<Value> taps_;
  std::unique_ptr<Arena> arena_;
  size_t room_ = 0;
};

// Sequences that a program runs over, step by step. Pages and slots are allocated in random order and start as NaN.
class Session {
 public:
  Session(Net& net, const std::vector<int>& lengths, int page = 32) : net_(net), page_(page), done_(lengths.size(), 0) {
    for (const Group& g : net.layout().groups()) {
      const bool paged = g.kind == StateSpec::Kind::paged;
      int n = 1;
      for (int length : lengths) n += paged ? (length + page - 1) / page : 1;
      Units units(n, g.bytes * (paged ? page : 1), paged ? page : 0, 5);
      auto& table = tables_.emplace_back();
      for (int length : lengths)
        for (int t = 0; t < (paged ? length : 1); t += page) table.units.push_back(units.take());
      table.begin = {0};
      for (int length : lengths) table.begin.push_back(table.begin.back() + (paged ? (length + page - 1) / page : 1));
      StateMemory::GroupMemory memory = units.state.group[0];
      const auto bytes = size_t(memory.n_units * memory.unit_bytes);
      Buffer& place = memory_.emplace_back(net.backend().allocate(bytes));
      net.backend().copy_in(place.data(), memory.base, bytes);
      memory.base = place.data();
      memory.layers = g.layers;
      state_.group.push_back(memory);
    }
  }

  // The rows of each sequence in this step; 0: none. outputs: the last row of each is an output, so that a step of one row each may be
  // replayed as a graph.
  std::vector<float> step(const std::vector<int>& rows_of, bool outputs = false) {
    Rows rows;
    std::vector<Tables> now(tables_.size());
    for (size_t s = 0; s < rows_of.size(); s++) {
      if (!rows_of[s]) continue;
      rows.add(done_[s], rows_of[s]);
      if (outputs) rows.out_row.push_back(int(rows.token.size()) - 1);
      for (size_t g = 0; g < tables_.size(); g++) now[g].add(tables_[g], s, done_[s] > 0, rows_of[s]);
      done_[s] += rows_of[s];
    }
    rows.out.assign(rows.out_row.size(), Out::token);
    rows.sample.assign(rows.out_row.size(), SampleRow{.top_p = 1, .repetition_penalty = 1});
    Batch batch = rows.batch();
    batch.parent = nullptr;
    std::vector<GroupTable> group;
    for (size_t g = 0; g < tables_.size(); g++)
      group.push_back(state_.group[g].page_tokens ? GroupTable{now[g].units.data(), now[g].begin.data()}
                                                  : GroupTable{nullptr, nullptr, now[g].src.data(), now[g].dst.data()});
    batch.group = group;
    return net_.run(batch, state_, n_steps_++);
  }
  void go_to(const std::vector<int>& contexts) { done_ = contexts; }  // later tokens are overwritten
  // Synthetic keys and values for `length` tokens of every sequence.
  void fill(const PagedKv& kv, int length) {
    if (length == 0) return;
    Backend& b = net_.backend();
    for (size_t s = 0; s < done_.size(); s++) {
      Rows rows;
      rows.add(0, length);
      Tables one;
      one.add(tables_[size_t(kv.ref.group)], s, false, length);
      rows.unit = one.units;
      rows.unit_begin = one.begin;
      std::vector<Buffer> held;
      auto made = [&](uint64_t name) {
        const DType type = b.activations();
        Array x({length, kv.kv_heads, kv.k_dim});
        Buffer& place = held.emplace_back(b.allocate(size_t(x.view.size() * size_of(type))));
        std::vector<uint16_t> half;
        for (float v : whole(x.fill(name)).data) half.push_back(bf16_from_f32(v));
        b.copy_in(place.data(), type == DType::f32 ? static_cast<const void*>(x.data.data()) : half.data(), place.size());
        Tensor t = x.view;
        t.data = place.data();
        t.dtype = type;
        return t;
      };
      const Tensor k = made(21 + 2 * s), v = made(22 + 2 * s);
      b.store_kv(kv, k, v, b.upload(rows.batch(), state_), state_);
      b.synchronize();
    }
  }

  // The slots of all sequences.
  std::vector<float> slots() {
    std::vector<float> all;
    for (size_t g = 0; g < tables_.size(); g++) {
      const StateMemory::GroupMemory& m = state_.group[g];
      if (m.page_tokens) continue;
      for (int32_t unit : tables_[g].units) {
        std::vector<float> one(size_t(m.unit_bytes / 4));
        net_.backend().copy_out(one.data(), m.unit(unit), one.size() * 4);
        std::ranges::copy_if(one, std::back_inserter(all), [](float x) { return std::bit_cast<uint32_t>(x) != ~0u; });  // without padding
      }
    }
    return all;
  }

 private:
  struct Tables {
    std::vector<int32_t> units, begin{0}, src, dst;
    void add(const Tables& all, size_t s, bool begun, int rows) {  // sequence s of them
      units.insert(units.end(), all.units.begin() + all.begin[s], all.units.begin() + all.begin[s + 1]);
      begin.push_back(int(units.size()));
      src.push_back(begun ? all.units[size_t(all.begin[s])] : 0);
      dst.insert(dst.end(), size_t(rows), -1);
      dst.back() = all.units[size_t(all.begin[s])];
    }
  };
  Net& net_;
  int page_;
  std::vector<int> done_;
  std::vector<Tables> tables_;
  std::vector<Buffer> memory_;
  StateMemory state_;
  uint64_t n_steps_ = 0;
};

// One run over state on the host, copied to the backend and back.
inline std::vector<float> run_with(Net& net, const Batch& batch, const StateMemory& host) {
  StateMemory state = host;
  std::vector<Buffer> places;
  for (StateMemory::GroupMemory& g : state.group) {
    const auto bytes = size_t(g.n_units * g.unit_bytes);
    g.base = places.emplace_back(net.backend().allocate(bytes)).data();
    net.backend().copy_in(g.base, host.group[places.size() - 1].base, bytes);
  }
  std::vector<float> all = net.run(batch, state);
  for (size_t g = 0; g < places.size(); g++)
    net.backend().copy_out(host.group[g].base, state.group[g].base, size_t(host.group[g].n_units * host.group[g].unit_bytes));
  return all;
}
// One run of rows without state.
inline std::vector<float> run_rows(Net& net, int64_t n) {
  Rows rows;
  rows.add(0, int(n));
  Batch batch = rows.batch();
  batch.group = {};
  return net.run(batch, {});
}

// Root mean square of the difference, relative to that of `want`: rounding errors average out, so it shows errors that a bound on single
// elements must hide.
inline double distance(const std::vector<float>& got, const std::vector<float>& want) {  // NaN stays NaN
  double difference = 0, all = 0;
  for (size_t i = 0; i < want.size(); i++) {
    difference += std::pow(double(got[i]) - want[i], 2);
    all += std::pow(double(want[i]), 2);
  }
  return std::sqrt(difference / all);
}
inline void expect_near(const std::vector<float>& got, const std::vector<float>& want, double most, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  EXPECT_TRUE(distance(got, want) <= most) << what << " is " << distance(got, want) << " away, not " << most;  // false for NaN, too
}

}  // namespace mr::test
