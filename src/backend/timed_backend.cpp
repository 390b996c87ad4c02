#include "backend/timed_backend.h"

#include <fmt/format.h>

#include <chrono>
#include <set>

namespace mr {

namespace {

class Timed final : public Backend, public TimedBackend {
 public:
  explicit Timed(std::unique_ptr<Backend> inner) : inner_(std::move(inner)) {}

  const std::map<std::string, OpTime>& times() const override { return times_; }
  void reset() override { times_.clear(); }
  std::string_view name() const override { return inner_->name(); }
  ThreadPool& pool() override { return inner_->pool(); }

  DType activations() const override { return inner_->activations(); }
  DType kv_dtype() const override { return inner_->kv_dtype(); }
  DeviceMemory memory() const override { return inner_->memory(); }
  std::optional<DeviceRates> rates() override { return inner_->rates(); }
  Buffer allocate(size_t bytes) override { return inner_->allocate(bytes); }
  void copy_in(void* to, const void* host, size_t bytes) override { inner_->copy_in(to, host, bytes); }
  void copy_out(void* host, const void* from, size_t bytes) override { inner_->copy_out(host, from, bytes); }
  void carry_out(std::span<const UnitCopy> copies, const StateMemory& s, const StateMemory& host) override {
    if (!copies.empty()) time("copies", [&] { inner_->carry_out(copies, s, host); });
  }
  Weight place(const FormatOps& f, std::span<const std::byte* const> rows, int64_t in, WeightStore& store) override {
    return inner_->place(f, rows, in, store);
  }
  Weight make_up(int64_t out, int64_t in, uint64_t seed, WeightStore& store) override { return inner_->make_up(out, in, seed, store); }
  Batch upload(const Batch& host, const StateMemory& s) override {
    Batch batch;
    time("upload", [&] { batch = inner_->upload(host, s); });
    return batch;
  }
  int padded(int n_seqs) const override { return inner_->padded(n_seqs); }
  void synchronize() override { inner_->synchronize(); }

  void embed(Tensor out, const Weight& table, float scale, const Batch& b) override {
    time("embed", [&] { inner_->embed(out, table, scale, b); });
  }
  void norm(Tensor out, Tensor x, const Norm& n) override {
    time("norm", [&] { inner_->norm(out, x, n); });
  }
  void linear(Tensor out, Tensor x, const Weight& w, const Epilogue& e) override {
    time_product(x, w, [&] { inner_->linear(out, x, w, e); });
  }
  void linear_gate(Tensor out, Tensor x, const Weight& w, Activation a, Arena& arena) override {
    time_product(x, w, [&] { inner_->linear_gate(out, x, w, a, arena); });
  }
  void linear_normed(Tensor out, Tensor x, const Norm& n, const Weight& w, const Epilogue& e, Arena& arena) override {
    time_product(x, w, [&] { inner_->linear_normed(out, x, n, w, e, arena); });
  }
  void linear_gate_normed(Tensor out, Tensor x, const Norm& n, const Weight& w, Activation a, Arena& arena) override {
    time_product(x, w, [&] { inner_->linear_gate_normed(out, x, n, w, a, arena); });
  }
  void attend_new(Tensor out, Tensor q, Tensor k, Tensor v, Tensor angles, bool interleaved, const PagedKv& kv, const Batch& b,
                  const StateMemory& s, const AttendArgs& a) override {
    time("attend", [&] { inner_->attend_new(out, q, k, v, angles, interleaved, kv, b, s, a); });
  }
  void announce(const Weight& w) override { inner_->announce(w); }
  void add(Tensor into, Tensor x, float scale) override {
    time("add", [&] { inner_->add(into, x, scale); });
  }
  void gate(Tensor out, Tensor gate, Tensor up, Activation a) override {
    time("gate", [&] { inner_->gate(out, gate, up, a); });
  }
  void activate(Tensor x, Activation a) override {
    time("activate", [&] { inner_->activate(x, a); });
  }
  void angles(Tensor out, const RopeTable& r, const Batch& b) override {
    time("angles", [&] { inner_->angles(out, r, b); });
  }
  void rope(Tensor x, Tensor angles, bool interleaved) override {
    time("rope", [&] { inner_->rope(x, angles, interleaved); });
  }
  void store_kv(const PagedKv& kv, Tensor k, Tensor v, const Batch& b, const StateMemory& s) override {
    time("store_kv", [&] { inner_->store_kv(kv, k, v, b, s); });
  }
  void attend(Tensor out, Tensor q, const PagedKv& kv, const Batch& b, const StateMemory& s, const AttendArgs& a) override {
    time("attend", [&] { inner_->attend(out, q, kv, b, s, a); });
  }
  void short_conv(Tensor out, Tensor x, Tensor w, Tensor bias, Activation a, const SlotState& s, const Batch& b,
                  const StateMemory& m) override {
    time("short_conv", [&] { inner_->short_conv(out, x, w, bias, a, s, b, m); });
  }
  void diag_scan(Tensor out, Tensor x, Tensor dt, Tensor b, Tensor c, const DiagScan& d, const Batch& batch,
                 const StateMemory& m) override {
    time("diag_scan", [&] { inner_->diag_scan(out, x, dt, b, c, d, batch, m); });
  }
  void outer_scan(Tensor out, Tensor x, Tensor dt, Tensor b, Tensor c, const OuterScan& d, const Batch& batch,
                  const StateMemory& m) override {
    time("outer_scan", [&] { inner_->outer_scan(out, x, dt, b, c, d, batch, m); });
  }
  void diag_scan_gated(Tensor out, Tensor x, Tensor dt, Tensor bias, Tensor b, Tensor c, Tensor z, const DiagScan& d, const Batch& batch,
                       const StateMemory& m) override {
    time("diag_scan", [&] { inner_->diag_scan_gated(out, x, dt, bias, b, c, z, d, batch, m); });
  }
  void outer_scan_gated(Tensor out, Tensor x, Tensor dt, Tensor bias, Tensor b, Tensor c, Tensor z, const OuterScan& d, const Batch& batch,
                        const StateMemory& m, const Norm* next) override {
    time("outer_scan", [&] { inner_->outer_scan_gated(out, x, dt, bias, b, c, z, d, batch, m, next); });
  }
  void linear_conv(Tensor out, Tensor x, const Norm& n, const Weight& w, const Epilogue& e, Tensor conv_out, int64_t first,
                   const ShortConv& conv, const Batch& b, const StateMemory& m, Arena& arena) override {
    time_product(x, w, [&] { inner_->linear_conv(out, x, n, w, e, conv_out, first, conv, b, m, arena); });
  }
  void selective_scan(Tensor out, Tensor u, Tensor z, const Selection& s, const DiagScan& d, const Batch& b, const StateMemory& m,
                      Arena& arena) override {
    time("selective_scan", [&] { inner_->selective_scan(out, u, z, s, d, b, m, arena); });
  }
  void softplus(Tensor x, Tensor bias) override {
    time("softplus", [&] { inner_->softplus(x, bias); });
  }
  void route(Tensor expert, Tensor weight, Tensor logits, bool renormalize) override {
    time("route", [&] { inner_->route(expert, weight, logits, renormalize); });
  }
  void route_normed(Tensor expert, Tensor weight, Tensor normed, Tensor x, const Norm& n, const Weight& router, bool renormalize,
                    Arena& arena) override {
    time("route", [&] { inner_->route_normed(expert, weight, normed, x, n, router, renormalize, arena); });
  }
  void grouped_linear(Tensor out, Tensor x, std::span<const Weight> experts, Tensor expert) override {
    time_experts(out, experts, expert, 1, [&] { inner_->grouped_linear(out, x, experts, expert); });
  }
  void grouped_gate(Tensor out, Tensor x, std::span<const Weight> gate, std::span<const Weight> up, Tensor expert, Activation a,
                    Arena& arena) override {
    time_experts(out, gate, expert, 2, [&] { inner_->grouped_gate(out, x, gate, up, expert, a, arena); });
  }
  void grouped_combine(Tensor into, Tensor x, std::span<const Weight> experts, Tensor expert, Tensor weight, const Norm* next,
                       Arena& arena) override {
    time_experts(x, experts, expert, 1, [&] { inner_->grouped_combine(into, x, experts, expert, weight, next, arena); });
  }
  void combine(Tensor out, Tensor x, Tensor weight) override {
    time("combine", [&] { inner_->combine(out, x, weight); });
  }
  void gather(Tensor out, Tensor x, const Batch& b) override {
    time("gather", [&] { inner_->gather(out, x, b); });
  }
  void softcap(Tensor x, float cap) override {
    time("softcap", [&] { inner_->softcap(x, cap); });
  }
  void sample(Tensor logits, const Batch& b, std::vector<Sampled>& out) override {
    time("sample", [&] { inner_->sample(logits, b, out); });
  }
  void launch_sample(Tensor logits, const Batch& b) override {
    time("sample", [&] { inner_->launch_sample(logits, b); });
  }
  void collect(std::vector<Sampled>& out) override { inner_->collect(out); }

 private:
  template <class F>
  void time_product(Tensor x, const Weight& w, F f) {
    OpTime& t = time(fmt::format("linear {} [{}, {}]", w.format().name, w.out, w.in), f);
    t.bytes += double(w.bytes());
    t.flops += 2.0 * double(x.shape[0]) * double(w.out) * double(w.in);
  }
  // times: products of this shape with the same choice of experts.
  template <class F>
  void time_experts(Tensor pairs, std::span<const Weight> experts, Tensor expert, int times, F f) {
    const Weight& w = experts[0];
    OpTime& t = time(fmt::format("experts {} {} x [{}, {}]", w.format().name, experts.size(), w.out * times, w.in), f);
    std::vector<int32_t> chosen(size_t(expert.size()));
    inner_->copy_out(chosen.data(), expert.data, size_t(expert.bytes()));
    std::set<int32_t> used(chosen.begin(), chosen.end());
    for (int32_t e : used) t.bytes += times * double(experts[size_t(e)].bytes());
    t.flops += 2.0 * times * double(pairs.shape[0]) * double(w.out) * double(w.in);
  }
  template <class F>
  OpTime& time(const std::string& op, F f) {
    auto begin = std::chrono::steady_clock::now();
    f();
    inner_->synchronize();
    OpTime& t = times_[op];
    t.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    t.calls++;
    return t;
  }

  std::unique_ptr<Backend> inner_;
  std::map<std::string, OpTime> times_;
};

}  // namespace

std::unique_ptr<Backend> make_timed_backend(std::unique_ptr<Backend> inner) { return std::make_unique<Timed>(std::move(inner)); }

}  // namespace mr
