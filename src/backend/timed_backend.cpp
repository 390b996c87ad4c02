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

  void embed(Tensor out, const Weight& table, float scale, const Batch& b) override {
    time("embed", [&] { inner_->embed(out, table, scale, b); });
  }
  void norm(Tensor out, Tensor x, const Norm& n) override {
    time("norm", [&] { inner_->norm(out, x, n); });
  }
  void linear(Tensor out, Tensor x, const Weight& w, const Epilogue& e) override {
    OpTime& t = time(fmt::format("linear {} [{}, {}]", w.format().name, w.out, w.in), [&] { inner_->linear(out, x, w, e); });
    t.bytes += double(w.bytes());
    t.flops += 2.0 * double(x.shape[0]) * double(w.out) * double(w.in);
  }
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
  void softplus(Tensor x, Tensor bias) override {
    time("softplus", [&] { inner_->softplus(x, bias); });
  }
  void route(Tensor expert, Tensor weight, Tensor logits, bool renormalize) override {
    time("route", [&] { inner_->route(expert, weight, logits, renormalize); });
  }
  void grouped_linear(Tensor out, Tensor x, std::span<const Weight> experts, Tensor expert) override {
    const Weight& w = experts[0];
    OpTime& t = time(fmt::format("experts {} {} x [{}, {}]", w.format().name, experts.size(), w.out, w.in),
                     [&] { inner_->grouped_linear(out, x, experts, expert); });
    std::set<int32_t> used(expert.as<int32_t>(), expert.as<int32_t>() + expert.size());
    for (int32_t e : used) t.bytes += double(experts[size_t(e)].bytes());
    t.flops += 2.0 * double(out.shape[0]) * double(w.out) * double(w.in);
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

 private:
  template <class F>
  OpTime& time(const std::string& op, F f) {
    auto begin = std::chrono::steady_clock::now();
    f();
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
