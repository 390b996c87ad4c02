// The CUDA backend with host memory as its interface: every operation takes host tensors, copies them to the device as `act` (f32 or bf16),
// runs there and copies results back, so that one test serves all backends. State goes to the device and back as bytes.
#pragma once

#include <map>

#include "backend/cpu/panels.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/programs.h"

namespace mr::test {

// A weight of bf16 values.
struct Made {
  WeightStore store;
  Weight weight;
  Array values;
  Made(int64_t out, int64_t in, uint64_t name, float scale = 1) : values({out, in}) {
    ThreadPool pool(1);
    whole(values.fill(name, scale));
    weight = pack(StoredWeight(get_codec("f32"), values.view.data, out, in), store, pool);
  }
};

class OnDevice final : public Backend {
 public:
  explicit OnDevice(DType act, const CudaOptions& options = {})
      : act_(act), gpu_(make_cuda_backend(options)), memory_(gpu_->allocate(kBytes)) {}
  CudaBackend& gpu() { return *gpu_; }
  std::string_view name() const override { return act_ == DType::bf16 ? "cuda, bf16" : "cuda, f32"; }
  ThreadPool& pool() override { return gpu_->pool(); }
  DType activations() const override { return act_; }
  static std::vector<float> values(Tensor x) {  // of a matrix, without padding
    std::vector<float> all;
    for (int64_t r = 0; r < x.shape[0]; r++) all.insert(all.end(), x.row<float>(r), x.row<float>(r) + x.shape[1]);
    return all;
  }

  // Places this weight from its stored rows instead of its values.
  void keep_form(const Weight& w, const StoredWeight& stored) { stored_[w.packed.data] = stored; }

  void embed(Tensor out, const Weight& table, float scale, const Batch& b) override {
    Call call(*this, b);
    gpu_->embed(call.out(out), call.weight(table), scale, call.batch);
  }
  void norm(Tensor out, Tensor x, const Norm& n) override {
    Call call(*this);
    Tensor to = out.data == x.data ? call.out(x) : call.out(out);
    gpu_->norm(to, out.data == x.data ? to : call.in(x), {n.kind, n.eps, call.f32(n.weight), call.f32(n.bias), n.offset});
  }
  void linear(Tensor out, Tensor x, const Weight& w, const Epilogue& e) override {
    Call call(*this);
    const bool onto = e.residual && e.residual.data == out.data;
    Tensor to = e.residual ? call.f32_out(out) : call.out(out);
    gpu_->linear(to, call.in(x), call.weight(w), {call.f32(e.bias), onto ? to : call.f32(e.residual), e.scale});
  }
  // Through a program, always with bf16 activations.
  void linear_gate(Tensor out, Tensor x, const Weight& w, Activation act) {
    Net net(*gpu_);
    const Value in = net.input(x.shape[1], 0), both = net.r().linear(in, {&placed(net, w), 1});
    net.tap(net.r().gate(both.columns(0, w.out / 2), both.columns(w.out / 2, w.out / 2), act));
    net.finish();
    net.set(in, values(x));
    put(out, run_rows(net, x.shape[0]));
  }
  // between += x . first^T, and out = norm(between) . second^T, or gated, as between two parts of a block.
  void norm_between(Tensor out, Tensor between, Tensor x, const Weight& first, const Norm& norm, const Weight& second, bool gated) {
    Net net(*gpu_);
    const Value in = net.input(x.shape[1], 0), sum = net.input(first.out, ValueType::f32, 0);
    net.r().add(sum, net.r().linear(in, {&placed(net, first), 1}));
    const Value y = net.r().linear(net.r().norm(sum, net.norm(norm)), {&placed(net, second), 1});
    const int64_t half = second.out / 2;
    net.tap(gated ? net.r().gate(y.columns(0, half), y.columns(half, half), Activation::silu) : y);
    net.tap(sum);
    net.finish();
    net.set(in, values(x));
    net.set(sum, values(between));
    const std::vector<float> all = run_rows(net, x.shape[0]);
    put(out, net.part(all, 0));
    put(between, net.part(all, 1));
  }
  void add(Tensor into, Tensor x, float scale) override {
    Call call(*this);
    gpu_->add(call.f32_out(into), call.in(x), scale);
  }
  void gate(Tensor out, Tensor g, Tensor up, Activation act) override {
    Call call(*this);
    gpu_->gate(call.out(out), call.in(g), call.in(up), act);
  }
  void activate(Tensor x, Activation act) override {
    Call call(*this);
    gpu_->activate(call.out(x), act);
  }
  void angles(Tensor out, const RopeTable& rope, const Batch& b) override {
    Call call(*this, b);
    gpu_->angles(call.f32_out(out), rope, call.batch);
  }
  void rope(Tensor x, Tensor angles, bool interleaved) override {
    Call call(*this);
    gpu_->rope(call.out(x), call.f32(angles), interleaved);
  }
  void store_kv(const PagedKv& kv, Tensor k, Tensor v, const Batch& b, const StateMemory& s) override {
    Call call(*this, b, &s);
    gpu_->store_kv(kv, call.in(k), call.in(v), call.batch, call.state);
  }
  // Without padding between rows, whose odd strides the fast kernels do not support.
  void attend(Tensor out, Tensor q, const PagedKv& kv, const Batch& b, const StateMemory& s, const AttendArgs& args) override {
    Array close_q({q.shape[0], q.shape[1], q.shape[2]}), close_out({out.shape[0], out.shape[1], out.shape[2]});
    auto copy_rows = [](Tensor to, Tensor from) {
      for (int64_t r = 0; r < to.shape[0]; r++)
        std::memcpy(to.as<float>() + r * to.stride[0], from.as<float>() + r * from.stride[0], size_t(to.shape[1] * to.shape[2]) * 4);
    };
    copy_rows(close_q, q);
    {
      Call call(*this, b, &s);
      AttendArgs on = args;
      on.sinks = call.f32(args.sinks);
      gpu_->attend(call.out(close_out), call.in(close_q), kv, call.batch, call.state, on);
    }
    copy_rows(out, close_out);
  }
  void short_conv(Tensor out, Tensor x, Tensor w, Tensor bias, Activation act, const SlotState& slot, const Batch& b,
                  const StateMemory& s) override {
    Call call(*this, b, &s);
    gpu_->short_conv(call.out(out), call.in(x), call.f32(w), call.f32(bias), act, slot, call.batch, call.state);
  }
  void diag_scan(Tensor out, Tensor x, Tensor dt, Tensor b, Tensor c, const DiagScan& scan, const Batch& batch,
                 const StateMemory& s) override {
    Call call(*this, batch, &s);
    DiagScan on = scan;
    on.a = call.f32(scan.a);
    on.d = call.f32(scan.d);
    gpu_->diag_scan(call.out(out), call.in(x), call.in(dt), call.in(b), call.in(c), on, call.batch, call.state);
  }
  void outer_scan(Tensor out, Tensor x, Tensor dt, Tensor b, Tensor c, const OuterScan& scan, const Batch& batch,
                  const StateMemory& s) override {
    Call call(*this, batch, &s);
    OuterScan on = scan;
    on.a = call.f32(scan.a);
    on.d = call.f32(scan.d);
    gpu_->outer_scan(call.out(out), call.in(x), call.in(dt), call.in(b), call.in(c), on, call.batch, call.state);
  }
  void softplus(Tensor x, Tensor bias) override {
    Call call(*this);
    gpu_->softplus(call.out(x), call.f32(bias));
  }
  void route(Tensor expert, Tensor weight, Tensor logits, bool renormalize) override {
    Call call(*this);
    gpu_->route(call.f32_out(expert), call.f32_out(weight), call.f32(logits), renormalize);  // 4-byte elements either way
  }
  void grouped_linear(Tensor out, Tensor x, std::span<const Weight> experts, Tensor expert) override {
    Call call(*this);
    std::vector<Weight> on;
    for (const Weight& w : experts) on.push_back(call.weight(w));
    gpu_->grouped_linear(call.out(out), call.in(x), on, call.f32(expert));
  }
  void combine(Tensor out, Tensor x, Tensor weight, bool add) override {
    Call call(*this);
    gpu_->combine(call.out(out), call.in(x), call.f32(weight), add);
  }
  void magnitude(Tensor out, Tensor x, const Magnitude& what) override {
    Call call(*this);
    gpu_->magnitude(call.f32_out(out), call.in(x), what);
  }
  void gather(Tensor out, Tensor x, const Batch& b) override {
    Call call(*this, b);
    gpu_->gather(call.out(out), call.in(x), call.batch);
  }
  void softcap(Tensor x, float cap) override {
    Call call(*this);
    gpu_->softcap(call.out(x), cap);
  }
  void sample(Tensor logits, const Batch& b, std::vector<Sampled>& out) override {
    Call call(*this, b);
    gpu_->sample(call.f32(logits), call.batch, out);
  }

 private:
  static constexpr size_t kBytes = size_t(512) << 20;

  // One operation: outputs are copied back when it ends.
  struct Call {
    OnDevice& on;
    Batch batch;
    StateMemory state;
    const StateMemory* host_state = nullptr;
    std::vector<std::pair<Tensor, Tensor>> results;  // host, device
    WeightStore weights{WeightStore::Mode::holds, [this](size_t bytes) { return on.gpu_->allocate(bytes); }};

    explicit Call(OnDevice& on) : on(on) { on.used_ = 0; }
    Call(OnDevice& on, const Batch& b, const StateMemory* s = nullptr) : on(on), host_state(s) {
      on.used_ = 0;
      if (s) {
        state = *s;
        for (auto& g : state.group) g.base = on.send(g.base, size_t(g.n_units * g.unit_bytes));
      }
      StateMemory slots;  // a batch without state: its tables are not used
      for (size_t g = 0; g < b.group.size(); g++) slots.group.push_back({nullptr, 0, 0, b.group[g].unit ? 32 : 0});
      batch = on.gpu_->upload(b, s ? *s : slots);
    }
    ~Call() noexcept(false) {
      for (auto& [host, device] : results) on.fetch(host, device);
      if (host_state)
        for (size_t g = 0; g < state.group.size(); g++)
          on.gpu_->copy_out(host_state->group[g].base, state.group[g].base, size_t(state.group[g].n_units * state.group[g].unit_bytes));
    }
    Tensor in(Tensor t) { return on.send(t, on.act_); }
    Tensor f32(Tensor t) { return t ? on.send(t, t.dtype) : t; }
    Tensor out(Tensor t) { return result(t, on.act_); }
    Tensor f32_out(Tensor t) { return result(t, t.dtype); }
    Tensor result(Tensor t, DType type) {
      Tensor device = on.send(t, type);
      results.push_back({t, device});
      return device;
    }
    Weight weight(const Weight& w) {
      if (auto it = on.stored_.find(w.packed.data); it != on.stored_.end()) return on.gpu_->place(it->second, weights);
      std::vector<float> values(size_t(w.out * w.in));
      w.decode(0, w.out, values.data());
      return on.gpu_->place(StoredWeight(get_codec("f32"), values.data(), w.out, w.in), weights);
    }
  };

  const Weight& placed(Net& net, const Weight& w) const {
    if (auto it = stored_.find(w.packed.data); it != stored_.end()) return net.weight(it->second);
    Array decoded({w.out, w.in});
    w.decode(0, w.out, decoded.data.data());
    return net.weight(decoded);
  }
  static void put(Tensor x, const std::vector<float>& all) {
    for (int64_t r = 0; r < x.shape[0]; r++) std::copy_n(all.begin() + r * x.shape[1], x.shape[1], x.row<float>(r));
  }

  std::byte* send(const std::byte* host, size_t bytes) {
    std::byte* to = memory_.data() + used_;
    used_ += (bytes + 255) / 256 * 256;
    check(used_ <= kBytes, "the test needs more than {} bytes on the device", kBytes);
    gpu_->copy_in(to, host, bytes);
    return to;
  }
  static int64_t extent(const Tensor& t) { return t.rank > 1 ? t.shape[0] * t.stride[0] : t.size(); }
  Tensor send(Tensor t, DType type) {  // with its padding; the last row may have none
    Tensor device = t;
    device.dtype = type;
    device.device = Device::cuda;
    const int64_t n = extent(t), readable = t.rank > 1 ? (t.shape[0] - 1) * t.stride[0] + row_size(t) : n;
    if (type == t.dtype) {
      std::vector<std::byte> bytes(size_t(n * size_of(type)));
      std::memcpy(bytes.data(), t.data, size_t(readable * size_of(type)));
      device.data = send(bytes.data(), bytes.size());
    } else {
      std::vector<uint16_t> values(static_cast<size_t>(n));
      for (int64_t i = 0; i < readable; i++) values[size_t(i)] = bf16_from_f32(t.as<float>()[i]);
      device.data = send(reinterpret_cast<std::byte*>(values.data()), values.size() * 2);
    }
    return device;
  }
  static int64_t row_size(const Tensor& t) {
    int64_t n = 1;
    for (int i = 1; i < t.rank; i++) n += (t.shape[size_t(i)] - 1) * t.stride[size_t(i)];
    return n;
  }
  void fetch(Tensor host, Tensor device) {
    std::vector<std::byte> bytes(size_t(extent(device) * size_of(device.dtype)));
    gpu_->copy_out(bytes.data(), device.data, bytes.size());
    const int64_t rows = host.rank > 1 ? host.shape[0] : 1, n = host.rank > 1 ? row_size(host) : host.size();
    for (int64_t r = 0; r < rows; r++)
      for (int64_t i = 0; i < n; i++) {
        int64_t at = r * (host.rank > 1 ? host.stride[0] : 0) + i;
        if (device.dtype == DType::bf16) {
          host.as<float>()[at] = f32_from_bf16(reinterpret_cast<uint16_t*>(bytes.data())[at]);
        } else {
          std::memcpy(host.as<float>() + at, bytes.data() + at * 4, 4);
        }
      }
  }

  DType act_;
  std::unique_ptr<CudaBackend> gpu_;
  Buffer memory_;
  size_t used_ = 0;
  std::map<const void*, StoredWeight> stored_;
};

}  // namespace mr::test
