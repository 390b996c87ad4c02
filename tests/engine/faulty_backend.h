// A backend that does what another does, and calls `before` ahead of each operation: to throw, to stall, to count. Operations made of
// several are made of the plain ones here.
#pragma once

#include <functional>

#include "backend/backend.h"

namespace mr {

class FaultyBackend final : public Backend {
 public:
  using Before = std::function<void(std::string_view operation)>;
  FaultyBackend(std::unique_ptr<Backend> inner, Before before) : inner_(std::move(inner)), before_(std::move(before)) {}

  std::string_view name() const override { return inner_->name(); }
  ThreadPool& pool() override { return inner_->pool(); }
  DType activations() const override { return inner_->activations(); }
  DType kv_dtype() const override { return inner_->kv_dtype(); }
  DeviceMemory memory() const override { return inner_->memory(); }
  Buffer allocate(size_t bytes) override { return inner_->allocate(bytes); }
  void copy_in(void* to, const void* host, size_t bytes) override { inner_->copy_in(to, host, bytes); }
  void copy_out(void* host, const void* from, size_t bytes) override { inner_->copy_out(host, from, bytes); }
  void carry_out(std::span<const UnitCopy> copies, const StateMemory& s, const StateMemory& host) override {
    before_("carry_out");
    inner_->carry_out(copies, s, host);
  }
  Weight place(const FormatOps& f, std::span<const std::byte* const> rows, int64_t in, WeightStore& store) override {
    return inner_->place(f, rows, in, store);
  }
  Batch upload(const Batch& host, const StateMemory& s) override {
    before_("upload");
    return inner_->upload(host, s);
  }
  void embed(Tensor out, const Weight& table, float scale, const Batch& b) override {
    before_("embed");
    inner_->embed(out, table, scale, b);
  }
  void norm(Tensor out, Tensor x, const Norm& n) override {
    before_("norm");
    inner_->norm(out, x, n);
  }
  void linear(Tensor out, Tensor x, const Weight& w, const Epilogue& e) override {
    before_("linear");
    inner_->linear(out, x, w, e);
  }
  void add(Tensor into, Tensor x, float scale) override {
    before_("add");
    inner_->add(into, x, scale);
  }
  void gate(Tensor out, Tensor gate, Tensor up, Activation a) override {
    before_("gate");
    inner_->gate(out, gate, up, a);
  }
  void activate(Tensor x, Activation a) override {
    before_("activate");
    inner_->activate(x, a);
  }
  void angles(Tensor out, const RopeTable& t, const Batch& b) override {
    before_("angles");
    inner_->angles(out, t, b);
  }
  void rope(Tensor x, Tensor angles, bool interleaved) override {
    before_("rope");
    inner_->rope(x, angles, interleaved);
  }
  void store_kv(const PagedKv& kv, Tensor k, Tensor v, const Batch& b, const StateMemory& s) override {
    before_("store_kv");
    inner_->store_kv(kv, k, v, b, s);
  }
  void attend(Tensor out, Tensor q, const PagedKv& kv, const Batch& b, const StateMemory& s, const AttendArgs& args) override {
    before_("attend");
    inner_->attend(out, q, kv, b, s, args);
  }
  void short_conv(Tensor out, Tensor x, Tensor w, Tensor bias, Activation a, const SlotState& slot, const Batch& b,
                  const StateMemory& s) override {
    before_("short_conv");
    inner_->short_conv(out, x, w, bias, a, slot, b, s);
  }
  void diag_scan(Tensor out, Tensor x, Tensor dt, Tensor b, Tensor c, const DiagScan& d, const Batch& batch,
                 const StateMemory& s) override {
    before_("diag_scan");
    inner_->diag_scan(out, x, dt, b, c, d, batch, s);
  }
  void outer_scan(Tensor out, Tensor x, Tensor dt, Tensor b, Tensor c, const OuterScan& d, const Batch& batch,
                  const StateMemory& s) override {
    before_("outer_scan");
    inner_->outer_scan(out, x, dt, b, c, d, batch, s);
  }
  void softplus(Tensor x, Tensor bias) override {
    before_("softplus");
    inner_->softplus(x, bias);
  }
  void route(Tensor expert, Tensor weight, Tensor logits, bool renormalize) override {
    before_("route");
    inner_->route(expert, weight, logits, renormalize);
  }
  void grouped_linear(Tensor out, Tensor x, std::span<const Weight> experts, Tensor expert) override {
    before_("grouped_linear");
    inner_->grouped_linear(out, x, experts, expert);
  }
  void combine(Tensor out, Tensor x, Tensor weight) override {
    before_("combine");
    inner_->combine(out, x, weight);
  }
  void gather(Tensor out, Tensor x, const Batch& b) override {
    before_("gather");
    inner_->gather(out, x, b);
  }
  void softcap(Tensor x, float cap) override {
    before_("softcap");
    inner_->softcap(x, cap);
  }
  void sample(Tensor logits, const Batch& b, std::vector<Sampled>& out) override {
    before_("sample");
    inner_->sample(logits, b, out);
  }

 private:
  std::unique_ptr<Backend> inner_;
  Before before_;
};

}  // namespace mr
