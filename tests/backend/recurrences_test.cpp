// Convolutions and scans against ref: prompts, single rows and trees, by themselves and gated, which a GPU does in one kernel.
#include "backend/operations.h"

namespace mr::test {
namespace {

// softplus, scan and gate: x, dt, b, c and z as a program reads them, which a GPU does at once. With f32 activations, which no program
// has there, one after the other.
template <class Scan>
std::vector<float> gated_scan(Backend& backend, std::array<Tensor, 5> in, Tensor bias, const Scan& scan, const Batch& batch,
                              const StateMemory& state) {
  constexpr bool diag = std::is_same_v<Scan, DiagScan>;
  auto* device = dynamic_cast<OnDevice*>(&backend);
  if (device && device->activations() == DType::f32) {
    Array y({in[0].shape[0], in[0].shape[1]});
    backend.softplus(in[1], bias);
    if constexpr (diag)
      backend.diag_scan(y, in[0], in[1], in[2], in[3], scan, batch, state);
    else
      backend.outer_scan(y, in[0], in[1], in[2], in[3], scan, batch, state);
    backend.gate(y, in[4], y, Activation::silu);
    return y.values();
  }
  Net net(device ? device->gpu() : backend);
  std::vector<Value> v;
  for (Tensor t : in) {
    v.push_back(net.input(t.shape[1], 0));
    net.set(v.back(), OnDevice::values(t));
  }
  Scan on = scan;
  on.a = net.floats(scan.a);
  on.d = net.floats(scan.d);
  net.r().softplus(v[1], net.floats(bias));
  Value y;
  if constexpr (diag)
    y = net.r().diag_scan(v[0], v[1], v[2], v[3], on);
  else
    y = net.r().outer_scan(v[0], v[1], v[2], v[3], on);
  net.r().gate_onto(y, v[4], y, Activation::silu);
  net.tap(y);
  net.finish();
  EXPECT_TRUE(net.has(Rule::gated_scan));
  return run_with(net, batch, state);
}

// Three steps of two sequences, then a tree that stores over the state it began from: outputs of all rows, then the slots.
template <class Step>
std::vector<float> recurrent(Backend& backend, int64_t state_floats, Step step) {
  const int64_t bytes = (64 + state_floats * 4 + 63) / 64 * 64;
  Units units(10, bytes, 0, 5);
  std::vector<float> all;
  int32_t slot[] = {units.take(), units.take()};
  int done[] = {0, 0};
  for (auto steps : {std::array{40, 1}, {1, 1}, {1, 1}, {3, 20}}) {
    Rows rows;
    for (int i = 0; i < 2; i++) {
      rows.add(done[i], steps[size_t(i)]);
      rows.src.back() = done[i] ? slot[i] : 0;
      rows.dst.back() = slot[i];
      done[i] += steps[size_t(i)];
    }
    for (float x : step(backend, rows.batch(), units.state)) all.push_back(x);
  }
  Rows tree;
  tree.add(done[0], 5, Corner::bits);
  tree.src[0] = slot[0];
  tree.parent = {-1, 0, 0, -1, 3};
  for (int r = 0; r < 5; r++) tree.dst[size_t(r)] = r == 0 ? slot[0] : units.take();
  for (float x : step(backend, tree.batch(), units.state)) all.push_back(x);
  for (int r = 0; r < 5; r++) {
    const float* h = reinterpret_cast<const float*>(units.state.group[0].unit(tree.dst[size_t(r)]) + 64);
    all.insert(all.end(), h, h + state_floats);
  }
  return all;
}

TEST_P(Operations, recurrences_agree_with_ref) {
  SKIP_WHERE_REF_IS_THE_DEFINITION();
  auto agree = [&](auto run, const std::string& what) { expect_ref(what, {1e-4 + 4 * step(), 1e-4 + 3 * step()}, run); };
  for (auto [channels, width, n] : {std::array{64, 4, 16}, {33, 3, 8}, {16, 1, 5}, {200, 4, 24}, {7, 2, 1}}) {
    Array conv({channels, width}), bias({channels}), a({channels, n}), d({channels});
    conv.fill(1);
    bias.fill(2);
    a.fill(3, 2, -2.1f);
    d.fill(4);
    agree(
        [&](Backend& b) {
          return recurrent(b, int64_t(width - 1) * channels, [&](Backend& backend, const Batch& batch, const StateMemory& state) {
            Array x({batch.n_tokens, channels}, 3), out({batch.n_tokens, channels});
            whole(x.fill(uint64_t(batch.n_tokens) + 7));
            backend.short_conv(out, x, conv, bias, Activation::silu, {{0, 64}, 0}, batch, state);
            return out.values();
          });
        },
        fmt::format("short_conv of {} channels", channels));
    agree(
        [&](Backend& b) {
          return recurrent(b, int64_t(channels) * n, [&](Backend& backend, const Batch& batch, const StateMemory& state) {
            const int t = batch.n_tokens;
            Array x({t, channels}, 3), dt({t, channels}), in({t, n}, 2), c({t, n}, 5), out({t, channels}, 1);
            for (auto [array, name] : {std::pair{&x, 11}, {&in, 13}, {&c, 14}}) whole(array->fill(uint64_t(name)));
            whole(dt.fill(12, 0.5f, 0.6f));
            // every other step with what may be fused to it
            Array z({t, channels}, 3);
            whole(z.fill(15));
            const DiagScan scan{channels, n, a, d, {{0, 64}, 0}};
            if ((t + batch.context[0]) % 2) return gated_scan(backend, {x, dt, in, c, z}, bias, scan, batch, state);
            backend.diag_scan(out, x, dt, in, c, scan, batch, state);
            return out.values();
          });
        },
        fmt::format("diag_scan of {} channels", channels));
  }
  for (auto [heads, dim, n, groups] :
       {std::array{4, 16, 12, 2}, {3, 64, 16, 1}, {2, 5, 1, 2}, {6, 80, 33, 3}, {2, 128, 128, 1}, {600, 16, 12, 2}, {300, 64, 33, 1}}) {
    Array a({heads}), d({heads}), bias({heads});
    a.fill(3, 1, -1.1f);
    d.fill(4);
    bias.fill(5);
    OuterScan scan{heads, dim, n, groups, a, heads % 2 ? Tensor{} : d.view, 0.2f, 1.0f, {{0, 64}, 0}};
    agree(
        [&](Backend& b) {
          return recurrent(b, int64_t(heads) * n * dim, [&](Backend& backend, const Batch& batch, const StateMemory& state) {
            const int t = batch.n_tokens;
            Array x({t, heads * dim}, 3), dt({t, heads}, 4), in({t, groups * n}, 2), c({t, groups * n}, 5), out({t, heads * dim}, 1);
            for (auto [array, name] : {std::pair{&x, 11}, {&in, 13}, {&c, 14}}) whole(array->fill(uint64_t(name)));
            whole(dt.fill(12, 0.6f, 0.6f));
            Array z({t, heads * dim}, 2);
            whole(z.fill(15));
            if ((t + batch.context[0]) % 2) return gated_scan(backend, {x, dt, in, c, z}, bias, scan, batch, state);
            backend.outer_scan(out, x, dt, in, c, scan, batch, state);
            return out.values();
          });
        },
        fmt::format("outer_scan of {} heads of {}", heads, dim));
  }
}

}  // namespace
}  // namespace mr::test
