// Programs of small models whose weights have shapes but no data.
#pragma once

#include <gtest/gtest.h>

#include <memory>

#include "program/bound.h"
#include "program/recorder.h"

namespace mr::test {

class Made {
 public:
  Program program;
  Recorder r{program};

  Made() = default;
  Made(const Made&) = delete;

  template <class T>
  const T& keep(T x) {
    auto p = std::make_shared<T>(std::move(x));
    kept_.push_back(p);
    return *p;
  }
  const Weight& weight(int64_t out, int64_t in) { return keep(Weight{&get_codec("f32"), out, in}); }
  Value linear(Value x, int64_t out, ValueType type = ValueType::activation) {
    return r.linear(x, {&weight(out, x.cols), 1}, {.type = type});
  }
  Value norm(Value x) { return r.norm(x, norm_); }
  Value input(int64_t cols, ValueType type = ValueType::activation) { return r.input({}, cols, type); }
  const PagedKv& kv() { return keep(PagedKv{{0, 0}, DType::f16, 2, 8, 8}); }

  Value embed() { return r.embed(weight(100, kDim), 1, "embedding"); }
  // Four query heads of 8 over two of keys and values; if it stores none, the keys are another layer's.
  void attention(Value x, const PagedKv& kv, bool stores = true) {
    const Value qkv = linear(norm(x), stores ? 64 : 32), q = qkv.columns(0, 32).as_heads(4), angles = r.angles(rope_);
    r.rope(q, angles, false);
    if (stores) {
      r.rope(qkv.columns(32, 16).as_heads(2), angles, false);
      r.store_kv(qkv.columns(32, 16).as_heads(2), qkv.columns(48, 16).as_heads(2), kv);
    }
    r.add(x, linear(r.attend(q, kv, {.heads = 4}), kDim));
  }
  void mlp(Value x) {
    const Value h = linear(norm(x), 96);
    r.add(x, linear(r.gate(h.columns(0, 48), h.columns(48, 48), Activation::silu), kDim));
  }
  void mamba(Value x, bool norms) {
    const ShortConv& conv = keep(ShortConv{.weight = view(nullptr, DType::f32, {40, 4})});
    const DiagScan& scan = keep(DiagScan{.inner = 40, .n_state = 8});
    const Value xz = linear(norm(x), 80), u = r.short_conv(xz.columns(0, 40), conv), dbc = linear(u, 20);
    for (Value part : {dbc.columns(0, 4), dbc.columns(4, 8), dbc.columns(12, 8)})
      if (norms) r.norm_in_place(part, norm_);
    const Value dt = linear(dbc.columns(0, 4), 40, ValueType::f32);
    r.softplus(dt, {});
    const Value y = r.diag_scan(u, dt, dbc.columns(4, 8), dbc.columns(12, 8), scan);
    r.gate_onto(y, xz.columns(40, 40), y, Activation::silu);
    r.add(x, linear(y, kDim));
  }
  void moe(Value x) {
    const auto& first = keep(std::vector<Weight>(4, Weight{&get_codec("f32"), 24, kDim}));
    const auto& last = keep(std::vector<Weight>(4, Weight{&get_codec("f32"), kDim, 24}));
    const Value y = norm(x);
    const auto [expert, weight] = r.route(linear(y, 4, ValueType::f32), 2, true);
    const Value gate = r.grouped_linear(y, first, expert, ""), up = r.grouped_linear(y, first, expert, "");
    r.gate_onto(up, gate, up, Activation::silu);
    r.add(x, r.combine(r.grouped_linear(up, last, expert, ""), weight));
  }
  void output(Value x) { program.logits = linear(norm(r.gather(x)), 100, ValueType::f32); }

  static constexpr int kDim = 32;

 private:
  Norm norm_;
  RopeTable rope_{.dim = 8};
  std::vector<std::shared_ptr<void>> kept_;
};

template <class T>
std::vector<int> places_of(const OpList& list) {
  std::vector<int> places;
  for (int i = 0; i < int(list.ops.size()); i++)
    if (list.ops[size_t(i)].get<T>()) places.push_back(i);
  return places;
}

}  // namespace mr::test
