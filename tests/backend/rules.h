// A small program for every rule of marks, and for chains of them along the residual stream.
#pragma once

#include "backend/programs.h"

namespace mr::test {

struct RuleCase {
  std::string name;
  Rule rule;
  void (*record)(Net&);
  double steps = 2;      // of bf16: the tolerance of a backend that rounds to it
  bool chooses = false;  // experts: a row whose best two are closer than rounding may choose the other
  bool floats = false;   // float weights only: some products have partial blocks of inputs
};

namespace rules {

constexpr int kDim = 128, kHeads = 8, kKvHeads = 2, kHead = 64;
constexpr int kQkv = (kHeads + 2 * kKvHeads) * kHead;

inline Value linear(Net& n, Value x, int64_t out, uint64_t name, ValueType type = ValueType::activation) {
  return n.r().linear(x, {&n.weight(out, x.cols, name), 1}, {.type = type});
}
inline Value gated(Net& n, Value x, int64_t half, uint64_t name) {
  const Value h = linear(n, x, 2 * half, name);
  return n.r().gate(h.columns(0, half), h.columns(half, half), Activation::silu);
}
inline Value residual(Net& n) { return n.input(kDim, ValueType::f32, 1, 3); }

inline void norm_linear(Net& n) {
  const Value x = residual(n), y = linear(n, n.r().norm(x, n.norm(kDim, 2)), 56, 3);
  n.tap(y);
}
// A product onto the residual stream, a norm, another product.
inline void norm_between(Net& n) {
  const Value x = residual(n);
  n.r().add(x, linear(n, n.input(96, 4), kDim, 5));
  n.tap(linear(n, n.r().norm(x, n.norm(kDim, 2)), 56, 3));
  n.tap(x);
}
inline void linear_gate(Net& n) { n.tap(gated(n, n.input(kDim, 1), 48, 2)); }
inline void linear_gate_odd(Net& n) { n.tap(gated(n, n.input(kDim, 1), 40, 2)); }
inline void norm_gate(Net& n) {
  const Value x = residual(n);
  n.r().add(x, linear(n, n.input(64, 4), kDim, 5));
  n.tap(gated(n, n.r().norm(x, n.norm(kDim, 2)), 48, 3));
}
inline void gate_linear(Net& n) {
  const Value h = gated(n, n.input(kDim, 1), 96, 2);
  n.tap(linear(n, h, 56, 3));
  n.tap(h);
}
inline void gate_linear_odd(Net& n) { n.tap(linear(n, gated(n, n.input(kDim, 1), 48, 2), 37, 3)); }
inline void mlp(Net& n, Value x, uint64_t name) {
  n.r().add(x, linear(n, gated(n, n.r().norm(x, n.norm(kDim, name)), 96, name + 1), kDim, name + 2));
}
inline void norm_gate_linear(Net& n) {
  const Value x = residual(n);
  mlp(n, x, 2);
  mlp(n, x, 5);
  n.tap(x);
}

struct Attention {
  bool rope = true, interleaved = false, stores = true;
  int window = 0;
};
// `qkv`: columns of queries, keys and values; queries alone where none are stored.
inline Value attention(Net& n, Value qkv, const PagedKv& kv, const RopeTable& table, Attention a = {}) {
  const Value q = qkv.columns(0, kHeads * kHead).as_heads(kHeads);
  const Value angles = a.rope ? n.r().angles(table) : Value{};
  if (a.rope) n.r().rope(q, angles, a.interleaved);
  if (a.stores) {
    const Value k = qkv.columns(kHeads * kHead, kKvHeads * kHead).as_heads(kKvHeads);
    const Value v = qkv.columns((kHeads + kKvHeads) * kHead, kKvHeads * kHead).as_heads(kKvHeads);
    if (a.rope) n.r().rope(k, angles, a.interleaved);
    n.r().store_kv(k, v, kv);
  }
  return n.r().attend(q, kv, {.heads = kHeads, .scale = 0.125f, .window = a.window});
}
inline void attend(Net& n) { n.tap(attention(n, n.input(kQkv, 1, 2), n.paged(kKvHeads, kHead), n.rope(kHead))); }
inline void attend_interleaved(Net& n) {
  n.tap(attention(n, n.input(kQkv, 1, 2), n.paged(kKvHeads, kHead), n.rope(kHead), {.interleaved = true}));
}
inline void attend_unrotated(Net& n) {
  n.tap(attention(n, n.input(kQkv, 1, 2), n.paged(kKvHeads, kHead), n.rope(kHead), {.rope = false, .window = 20}));
}
inline void attend_linear(Net& n) { n.tap(linear(n, attention(n, n.input(kQkv, 1, 2), n.paged(kKvHeads, kHead), n.rope(kHead)), 56, 2)); }
inline void attend_linear_unrotated(Net& n) {
  n.tap(linear(n, attention(n, n.input(kQkv, 1, 2), n.paged(kKvHeads, kHead), n.rope(kHead), {.rope = false}), 56, 2));
}
// The second reads the keys and values of the first.
inline void attend_shared(Net& n) {
  const PagedKv& kv = n.paged(kKvHeads, kHead);
  const RopeTable& table = n.rope(kHead);
  n.tap(attention(n, n.input(kQkv, 1, 2), kv, table));
  n.tap(linear(n, attention(n, n.input(kHeads * kHead, 3, 2), kv, table, {.stores = false}), 56, 2));
}
inline void transformer(Net& n) {
  const Value x = residual(n);
  const RopeTable& table = n.rope(kHead);
  for (uint64_t layer = 1; layer <= 3; layer++) {
    const Value qkv = linear(n, n.r().norm(x, n.norm(kDim, 10 * layer)), kQkv, 10 * layer + 1);
    n.r().add(x, linear(n, attention(n, qkv, n.paged(kKvHeads, kHead), table), kDim, 10 * layer + 2));
    mlp(n, x, 10 * layer + 3);
  }
  n.tap(x);
}

inline const ShortConv& conv(Net& n, int channels, int width, uint64_t name) {
  return n.keep(ShortConv{n.floats({channels, width}, name), n.floats({channels}, name + 1), Activation::silu,
                          n.slot(int64_t(width - 1) * channels)});
}
inline void linear_conv(Net& n) {
  const Value x = residual(n);
  n.r().add(x, linear(n, n.input(64, 4), kDim, 5));
  const Value all = linear(n, n.r().norm(x, n.norm(kDim, 2)), 200, 3);
  n.tap(n.r().short_conv(all.columns(24, 100), conv(n, 100, 4, 6)));
  n.tap(all.columns(0, 24));
  n.tap(all.columns(124, 76));
}

inline const DiagScan& diag(Net& n, int inner, int states, uint64_t name) {
  return n.keep(
      DiagScan{inner, states, n.floats({inner, states}, name, 2, -2.1f), n.floats({inner}, name + 1), n.slot(int64_t(inner) * states)});
}
inline void gated_diag(Net& n) {
  const Value dt = n.input(96, 3), z = n.input(96, 4, 2);
  n.r().softplus(dt, n.floats({96}, 5));
  const Value y = n.r().diag_scan(n.input(96, 1), dt, n.input(16, 6), n.input(16, 7), diag(n, 96, 16, 8));
  n.r().gate_onto(y, z, y, Activation::silu);
  n.tap(y);
}
inline const OuterScan& outer(Net& n, int heads, int dim, int states, int groups, uint64_t name) {
  return n.keep(OuterScan{heads, dim, states, groups, n.floats({heads}, name, 1, -1.1f), n.floats({heads}, name + 1), 0, 10,
                          n.slot(int64_t(heads) * dim * states)});
}
inline void gated_outer(Net& n) {
  const Value dt = n.input(4, 3), z = n.input(128, 4, 2);
  n.r().softplus(dt, n.floats({4}, 5));
  const Value y = n.r().outer_scan(n.input(128, 1), dt, n.input(32, 6), n.input(32, 7), outer(n, 4, 32, 16, 2, 8));
  n.r().gate_onto(y, z, y, Activation::silu);
  n.tap(y);
}
// Mamba from u to its scan's result.
inline Value selection(Net& n, Value u, Value z, int inner, int rank, int states, bool norms, uint64_t name) {
  const Value dbc = linear(n, u, rank + 2 * states, name);
  const Value low = dbc.columns(0, rank), b = dbc.columns(rank, states), c = dbc.columns(rank + states, states);
  if (norms) {
    n.r().norm_in_place(low, n.norm(rank, name + 1));
    n.r().norm_in_place(b, n.norm(states, name + 2));
    n.r().norm_in_place(c, n.norm(states, name + 3));
  }
  const Value dt = linear(n, low, inner, name + 4, ValueType::f32);
  n.r().softplus(dt, n.floats({inner}, name + 5));
  const Value y = n.r().diag_scan(u, dt, b, c, diag(n, inner, states, name + 6));
  n.r().gate_onto(y, z, y, Activation::silu);
  return y;
}
inline void selective_scan(Net& n) { n.tap(selection(n, n.input(160, 1), n.input(160, 2, 2), 160, 32, 16, false, 3)); }
inline void selective_scan_normed(Net& n) { n.tap(selection(n, n.input(160, 1), n.input(160, 2, 2), 160, 32, 16, true, 3)); }
inline void mamba(Net& n) {
  const Value x = residual(n);
  for (uint64_t layer = 1; layer <= 3; layer++) {
    const uint64_t name = 20 * layer;
    const Value xz = linear(n, n.r().norm(x, n.norm(kDim, name)), 320, name + 1);
    const Value u = n.r().short_conv(xz.columns(0, 160), conv(n, 160, 4, name + 2));
    n.r().add(x, linear(n, selection(n, u, xz.columns(160, 160), 160, 32, 16, layer == 2, name + 4), kDim, name + 15));
  }
  n.tap(x);
}
inline void mamba2(Net& n) {
  const Value x = residual(n);
  for (uint64_t layer = 1; layer <= 3; layer++) {
    const uint64_t name = 20 * layer;
    const Value all = linear(n, n.r().norm(x, n.norm(kDim, name)), 128 + 128 + 64 + 4, name + 1);
    const Value z = all.columns(0, 128), dt = all.columns(320, 4);
    const Value xbc = n.r().short_conv(all.columns(128, 192), conv(n, 192, 4, name + 2));
    n.r().softplus(dt, n.floats({4}, name + 4));
    const Value y = n.r().outer_scan(xbc.columns(0, 128), dt, xbc.columns(128, 32), xbc.columns(160, 32), outer(n, 4, 32, 16, 2, name + 5));
    n.r().gate_onto(y, z, y, Activation::silu);
    n.r().add(x, linear(n, n.r().norm(y, n.norm(128, name + 7)), kDim, name + 8));
  }
  n.tap(x);
}

inline void route(Net& n) {
  const Value x = residual(n), y = n.r().norm(x, n.norm(kDim, 2));
  n.tap(n.r().route(linear(n, y, 8, 3, ValueType::f32), 2, true).weight);
  n.tap(y);
}
inline void moe(Net& n, Value x, uint64_t name, bool renormalize) {
  const Value y = n.r().norm(x, n.norm(kDim, name));
  const auto [expert, weight] = n.r().route(linear(n, y, 8, name + 1, ValueType::f32), 2, renormalize);
  const Value gate = n.r().grouped_linear(y, n.weights(8, 64, kDim, name + 2), expert, "");
  const Value up = n.r().grouped_linear(y, n.weights(8, 64, kDim, name + 3), expert, "");
  n.r().gate_onto(up, gate, up, Activation::silu);
  n.r().add(x, n.r().combine(n.r().grouped_linear(up, n.weights(8, kDim, 64, name + 4), expert, ""), weight));
}
inline void experts(Net& n) {
  const Value x = residual(n);
  n.r().add(x, linear(n, n.input(64, 4), kDim, 5));
  moe(n, x, 6, true);
  n.tap(linear(n, n.r().norm(x, n.norm(kDim, 12)), 56, 13));
  n.tap(x);
}
// Attention, a scan and experts in turn. Experts come last, so that a row that chooses another one changes no state.
inline void hybrid(Net& n) {
  const Value x = residual(n);
  const Value qkv = linear(n, n.r().norm(x, n.norm(kDim, 10)), kQkv, 11);
  n.r().add(x, linear(n, attention(n, qkv, n.paged(kKvHeads, kHead), n.rope(kHead)), kDim, 12));
  const Value xz = linear(n, n.r().norm(x, n.norm(kDim, 20)), 320, 21);
  const Value u = n.r().short_conv(xz.columns(0, 160), conv(n, 160, 4, 22));
  n.r().add(x, linear(n, selection(n, u, xz.columns(160, 160), 160, 32, 16, true, 30), kDim, 41));
  moe(n, x, 13, false);
  mlp(n, x, 50);
  n.tap(x);
}

}  // namespace rules

inline const RuleCase kRuleCases[] = {
    {"norm_linear", Rule::norm_linear, rules::norm_linear},
    {"norm_between", Rule::norm_linear, rules::norm_between},
    {"linear_gate", Rule::linear_gate, rules::linear_gate},
    {"linear_gate_odd", Rule::linear_gate, rules::linear_gate_odd},
    {"norm_gate", Rule::linear_gate, rules::norm_gate},
    {"gate_linear", Rule::gate_linear, rules::gate_linear, 3},
    {"gate_linear_odd", Rule::gate_linear, rules::gate_linear_odd, 3, false, true},
    {"norm_gate_linear", Rule::gate_linear, rules::norm_gate_linear},
    {"attend", Rule::attend, rules::attend, 4},
    {"attend_interleaved", Rule::attend, rules::attend_interleaved, 4},
    {"attend_unrotated", Rule::attend, rules::attend_unrotated, 4},
    {"attend_linear", Rule::attend_linear, rules::attend_linear, 4},
    {"attend_linear_unrotated", Rule::attend_linear, rules::attend_linear_unrotated, 4},
    {"attend_shared", Rule::attend_linear, rules::attend_shared, 4},
    {"transformer", Rule::attend_linear, rules::transformer, 4},
    {"linear_conv", Rule::linear_conv, rules::linear_conv},
    {"gated_diag", Rule::gated_scan, rules::gated_diag},
    {"gated_outer", Rule::gated_scan, rules::gated_outer},
    {"selective_scan", Rule::selective_scan, rules::selective_scan, 3},
    {"selective_scan_normed", Rule::selective_scan, rules::selective_scan_normed, 3},
    {"mamba", Rule::selective_scan, rules::mamba, 4},
    {"mamba2", Rule::linear_conv, rules::mamba2, 4},
    {"route", Rule::route, rules::route, 2, true},
    {"experts_gate", Rule::experts_gate, rules::experts, 3, true},
    {"experts_combine", Rule::experts_combine, rules::experts, 3, true},
    {"hybrid", Rule::experts_combine, rules::hybrid, 4, true},
};

// How the rows of a step are distributed: one per sequence; all in one; over four. A shorter step runs before. Without state these are
// all the same.
struct RowsIn {
  std::vector<int> before, now;
  std::vector<int> lengths() const {
    std::vector<int> n;
    for (size_t i = 0; i < now.size(); i++) n.push_back(before[i] + now[i]);
    return n;
  }
};
inline std::vector<RowsIn> ways_to_have(int rows, const Net& net) {
  if (net.layout().groups().empty()) return {{{0}, {rows}}};
  std::vector<RowsIn> ways{{{}, {}}, {{40}, {rows}}, {{0, 1, 17, 33}, {}}};
  for (int i = 0; i < rows; i++) {
    ways[0].before.push_back(i < 8 ? i % 5 * 7 : i % 2);
    ways[0].now.push_back(1);
  }
  for (int i = 0; i < 4; i++) ways[2].now.push_back(rows * (i + 1) / 4 - rows * i / 4);
  return ways;
}
inline const int kRuleRows[] = {1, 2, 3, 7, 8, 16, 17, 32, 33, 64, 65, 128, 129, 300};

// A program's results of the second step, and its slots.
inline std::vector<float> results_of(Net& net, const RowsIn& way) {
  Session session(net, way.lengths());
  if (std::ranges::any_of(way.before, [](int n) { return n > 0; })) session.step(way.before);
  std::vector<float> all = session.step(way.now);
  const std::vector<float> kept = session.slots();
  all.insert(all.end(), kept.begin(), kept.end());
  return all;
}

}  // namespace mr::test
