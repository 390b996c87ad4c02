// What a backend is unless it says otherwise: everything in the host's memory, done at once, fused operations made of plain ones.
#include "backend/backend.h"

#include <cmath>
#include <cstring>

#include "core/arena.h"
#include "core/config.h"
#include "core/error.h"
#include "state/state_manager.h"

namespace mr {

DeviceMemory Backend::memory() const { return {physical_memory(), false}; }

void Backend::copy_in(void* to, const void* host, size_t bytes) { std::memcpy(to, host, bytes); }
void Backend::copy_out(void* host, const void* from, size_t bytes) { std::memcpy(host, from, bytes); }

void Backend::carry_out(std::span<const UnitCopy> copies, const StateMemory& state, const StateMemory& host) {
  mr::carry_out(copies, state, host);
}

Weight Backend::place(const FormatOps& format, std::span<const std::byte* const> rows, int64_t in, WeightStore& store) {
  return pack(format, rows, in, store, pool());
}

// A small deterministic value in [-1, 1) for element i of a made-up stream.
static float made_up_value(uint64_t seed, uint64_t i) {
  uint64_t z = seed + 0x9e3779b97f4a7c15u * (i + 1);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return float(int64_t(z ^ (z >> 31)) >> 40) * 0x1p-23f;
}

Weight Backend::make_up(int64_t out, int64_t in, uint64_t seed, WeightStore& store) {
  std::vector<const std::byte*> rows(static_cast<size_t>(out));
  std::vector<uint16_t> values;
  if (store.mode() == WeightStore::Mode::holds) {
    values.resize(size_t(out * in));
    const float spread = std::sqrt(3.0f / float(in));
    pool().parallel(out, 64, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin * in; i < end * in; i++) values[size_t(i)] = bf16_from_f32(spread * made_up_value(seed, uint64_t(i)));
    });
    for (int64_t r = 0; r < out; r++) rows[size_t(r)] = reinterpret_cast<const std::byte*>(values.data() + r * in);
  }
  return place(format_ops("bf16"), rows, in, store);
}

Tensor Backend::replay(uint64_t, FunctionRef<Tensor()> step) { return step(); }

void Backend::linear_gate(Tensor out, Tensor x, const Weight& weight, Activation act, Arena& arena) {
  const int64_t half = weight.out / 2;
  ArenaScope scope(arena);
  Tensor both = arena.tensor(activations(), {x.shape[0], weight.out});
  linear(both, x, weight, {});
  gate(out, both.cols(0, half), both.cols(half, half), act);
}

static Tensor normed(Backend& ops, Tensor x, const Norm& norm, Arena& arena) {
  Tensor y = arena.tensor(ops.activations(), {x.shape[0], x.shape[1]});
  ops.norm(y, x, norm);
  return y;
}

void Backend::linear_normed(Tensor out, Tensor x, const Norm& norm, const Weight& weight, const Epilogue& e, Arena& arena) {
  ArenaScope scope(arena);
  linear(out, normed(*this, x, norm, arena), weight, e);
}

void Backend::linear_gate_normed(Tensor out, Tensor x, const Norm& norm, const Weight& weight, Activation act, Arena& arena) {
  ArenaScope scope(arena);
  linear_gate(out, normed(*this, x, norm, arena), weight, act, arena);
}

void Backend::attend_new(Tensor out, Tensor q, Tensor k, Tensor v, Tensor angles, bool interleaved, const PagedKv& kv, const Batch& batch,
                         const StateMemory& state, const AttendArgs& args) {
  if (angles) rope(q, angles, interleaved);
  if (k) {
    if (angles) rope(k, angles, interleaved);
    store_kv(kv, k, v, batch, state);
  }
  attend(out, q, kv, batch, state, args);
}

void Backend::diag_scan_gated(Tensor out, Tensor x, Tensor dt, Tensor dt_bias, Tensor b, Tensor c, Tensor z, const DiagScan& scan,
                              const Batch& batch, const StateMemory& state) {
  softplus(dt, dt_bias);
  diag_scan(out, x, dt, b, c, scan, batch, state);
  gate(out, z, out, Activation::silu);
}

void Backend::outer_scan_gated(Tensor out, Tensor x, Tensor dt, Tensor dt_bias, Tensor b, Tensor c, Tensor z, const OuterScan& scan,
                               const Batch& batch, const StateMemory& state, const Norm*) {
  softplus(dt, dt_bias);
  outer_scan(out, x, dt, b, c, scan, batch, state);
  gate(out, z, out, Activation::silu);
}

void Backend::linear_conv(Tensor out, Tensor x, const Norm& norm, const Weight& weight, const Epilogue& e, Tensor conv_out, int64_t first,
                          const ShortConv& conv, const Batch& batch, const StateMemory& state, Arena& arena) {
  linear_normed(out, x, norm, weight, e, arena);
  short_conv(conv_out, out.cols(first, conv_out.shape[1]), conv.weight, conv.bias, conv.act, conv.state, batch, state);
}

void Backend::selective_scan(Tensor out, Tensor u, Tensor z, const Selection& s, const DiagScan& scan, const Batch& batch,
                             const StateMemory& state, Arena& arena) {
  ArenaScope scope(arena);
  const int64_t rows = u.shape[0], rank = s.low->in, n = scan.n_state;
  Tensor dbc = arena.tensor(activations(), {rows, rank + 2 * n});
  linear(dbc, u, *s.x, {});
  Tensor low = dbc.cols(0, rank), b = dbc.cols(rank, n), c = dbc.cols(rank + n, n);
  if (s.norms) {
    norm(low, low, s.dt_norm);
    norm(b, b, s.b_norm);
    norm(c, c, s.c_norm);
  }
  Tensor dt = arena.tensor(DType::f32, {rows, scan.inner});  // an exponent: 8 bits of it would be too few
  linear(dt, low, *s.low, {});
  diag_scan_gated(out, u, dt, s.dt_bias, b, c, z, scan, batch, state);
}

void Backend::route_normed(Tensor expert, Tensor weight, Tensor normed, Tensor x, const Norm& n, const Weight& router, bool renormalize,
                           Arena& arena) {
  ArenaScope scope(arena);
  Tensor logits = arena.tensor(DType::f32, {x.shape[0], router.out});
  norm(normed, x, n);
  linear(logits, normed, router, {});
  route(expert, weight, logits, renormalize);
}

void Backend::grouped_gate(Tensor out, Tensor x, std::span<const Weight> first, std::span<const Weight> up, Tensor expert, Activation act,
                           Arena& arena) {
  ArenaScope scope(arena);
  Tensor g = arena.tensor(out.dtype, {out.shape[0], out.shape[1]});
  grouped_linear(g, x, first, expert);
  grouped_linear(out, x, up, expert);
  gate(out, g, out, act);
}

void Backend::grouped_combine(Tensor into, Tensor x, std::span<const Weight> experts, Tensor expert, Tensor weight, const Norm*,
                              Arena& arena) {
  ArenaScope scope(arena);
  Tensor each = arena.tensor(activations(), {x.shape[0], into.shape[1]}), sum = arena.tensor(activations(), {into.shape[0], into.shape[1]});
  grouped_linear(each, x, experts, expert);
  combine(sum, each, weight);
  add(into, sum, 1);
}

void Backend::launch_sample(Tensor logits, const Batch& batch) { sample(logits, batch, launched_.emplace_back()); }

void Backend::collect(std::vector<Sampled>& out) {
  check(!launched_.empty(), "no step was launched whose tokens could be collected");
  out = std::move(launched_.front());
  launched_.pop_front();
}

}  // namespace mr
